"""Watermark detector: equals its definition; false positives as by chance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from gatewayd_logits_watermark.detector import MarkDetector, detect, judge
from gatewayd_logits_watermark.keys import keys_of
from tests.plugins.logits.watermark_oracle import config, is_green


@pytest.mark.parametrize(("context", "gamma"), [(1, 0.25), (2, 0.5)])
def test_the_detector_counts_what_the_definition_says(context: int, gamma: float) -> None:
    text = np.random.default_rng(1).integers(0, 9, 400).tolist()
    key = b"k" * 32
    pairs = {tuple(text[i : i + context + 1]) for i in range(len(text) - context)}
    green = sum(is_green(key, pair[:-1], pair[-1], gamma) for pair in pairs)
    found = detect(text, key, gamma, context)
    assert (found.num_scored, found.num_green) == (len(pairs), green)
    expected = (green - gamma * len(pairs)) / math.sqrt(len(pairs) * gamma * (1 - gamma))
    assert found.z == pytest.approx(expected)


@pytest.mark.parametrize("gamma", [0.05, 0.25, 0.9])
def test_the_probability_is_the_binomial_one(gamma: float) -> None:
    for trials in (1, 7, 199, 20_000):
        for green in {0, 1, trials // 3, trials // 2, trials}:
            wanted = binom.sf(green - 1, trials, gamma)
            assert judge(trials, green, gamma).p_value == pytest.approx(
                wanted, rel=1e-6, abs=1e-300
            )


def test_short_text_gets_no_verdict_unless_it_is_sure() -> None:
    detector = MarkDetector(config())
    for text in ([], [5], [5, 6], list(range(100))):
        found = detector.detect(text, "")
        assert (found.num_scored, found.is_marked) == (max(0, len(text) - 1), None)
    assert detector.detect(list(range(101)), "").is_marked is False
    assert judge(8, 8, 0.25).is_marked is True


def test_repetition_proves_nothing() -> None:
    detector = MarkDetector(config())
    once = list(range(50, 90))
    assert detector.detect(once * 25, "").num_scored == len(once)
    circles = [detector.detect([a, b] * 200, "") for a in range(20) for b in range(20, 60)]
    assert {found.is_marked for found in circles} == {None}


def test_chance_looks_marked_in_fewer_than_one_of_a_thousand_texts() -> None:
    """12,000 texts of 200 tokens with keys of their own, some of them of few different words."""
    draw = np.random.default_rng(2)
    z, marked = [], 0
    for i in range(12_000):
        words = (30, 400, 4096, 150_000)[i % 4]
        text = (draw.zipf(1.3, 200) % words if i % 3 else draw.integers(0, words, 200)).tolist()
        found = detect(text, draw.bytes(32), 0.25, 1)
        z.append(found.z)
        marked += found.is_marked is True
    assert marked <= 4  # by its rule 1.2 at most are expected
    assert sum(one >= 4 for one in z) <= 12
    assert abs(np.mean(z)) < 0.03
    assert abs(np.std(z) - 1) < 0.03


def test_the_tenant_of_everybody_has_one_key_and_keeps_what_an_earlier_one_has_marked() -> None:
    settings = config()
    detector, key_of = MarkDetector(settings), keys_of(settings)

    def marked(key: bytes) -> list[int]:
        ids = [9]
        while len(ids) < 120:
            green = (t for t in range(4096) if is_green(key, ids[-1:], t, settings.gamma))
            ids.append(next(t for t in green if t not in ids))
        return ids

    today, once, other = (marked(key_of(name)) for name in ("", "default", "acme"))
    for name in ("", "default"):
        assert detector.detect(today, name).is_marked is True
        assert detector.detect(once, name).is_marked is True, "a limit had changed its name"
        assert detector.detect(other, name).is_marked is False
        assert detector.detect(today, "acme").is_marked is False
