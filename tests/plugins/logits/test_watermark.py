"""Watermark: arithmetic equals plain integers; marked requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_hooks.host.errors import BadSettings
from gatewayd_hooks.host.settings import decode
from gatewayd_hooks.logits import RequestRefused
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.logits import LogitsProcessorConformance, Sampling
from gatewayd_logits_watermark.config import WatermarkConfig
from gatewayd_logits_watermark.detector import detect
from gatewayd_logits_watermark.keys import keys_of
from gatewayd_logits_watermark.strategy import Watermark
from tests.plugins.logits.watermark_oracle import SECRET, config, is_green

VOCAB = 997


class TestWatermark(LogitsProcessorConformance):
    def make(self) -> Watermark:
        return Watermark(config(context=2))

    def requests(self) -> Sequence[Sampling]:
        return [Sampling(tenant=tenant) for tenant in ("", "a", "b", "a")]


class TestWatermarkWherePlain(LogitsProcessorConformance):
    def make(self) -> Watermark:
        return Watermark(config(delta=3.0, max_delta=3.0))

    def requests(self) -> Sequence[Sampling]:
        return [Sampling(), Sampling(tenant="a")]


def opened(settings: WatermarkConfig, rows: int = 8, vocab: int = VOCAB) -> Watermark:
    processor = Watermark(settings)
    processor.open(engine_resources(vocab_size=vocab, max_running=rows))
    return processor


def ids(*tokens: int) -> Any:
    return np.array(tokens, np.int32)


def added(processor: Watermark, row: int, vocab: int = VOCAB) -> list[float]:
    logits = torch.zeros(1, vocab)
    processor.apply(logits, torch.tensor([0]), torch.tensor([row]))
    return list(logits[0].tolist())


@pytest.mark.parametrize(("context", "gamma"), [(1, 0.25), (3, 0.6)])
def test_exactly_the_green_logits_are_raised(context: int, gamma: float) -> None:
    settings = config(context=context, gamma=gamma, delta=1.5, max_delta=1.5)
    processor, key_of = opened(settings), keys_of(settings)
    prompt, text = [3, 1], [4, 1, 5, 9, 2, 6]
    processor.admit(2, Sampling(tenant="acme"), ids(*prompt), ids())
    for i in range(len(text) + 1):
        before = ([-1] * context + prompt + text[:i])[-context:]
        wanted = [
            1.5 if is_green(key_of("acme"), before, token, gamma) else 0.0 for token in range(VOCAB)
        ]
        assert added(processor, 2) == wanted
        share = sum(wanted) / 1.5 / VOCAB
        assert abs(share - gamma) < 5 * math.sqrt(gamma * (1 - gamma) / VOCAB)
        if i < len(text):
            processor.append(torch.tensor([2]), torch.tensor([text[i]]))


def test_blocks_of_lines_join_without_a_seam() -> None:
    vocab = 40_000  # three lines a block
    processor = opened(config(), vocab=vocab)
    for row in range(8):
        processor.admit(row, Sampling(), ids(row), ids())
    together = torch.zeros(8, vocab)
    processor.apply(together, torch.arange(8), torch.arange(8))
    for row in range(8):
        assert together[row].tolist() == added(processor, row, vocab)


def test_the_impossible_stays_impossible() -> None:
    processor = opened(config(gamma=0.9, delta=100.0, max_delta=100.0))
    processor.admit(0, Sampling(), ids(1), ids())
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, 7] = 0.0
    processor.apply(logits, torch.tensor([0]), torch.tensor([0]))
    assert (logits[0] > -torch.inf).nonzero().tolist() == [[7]]
    assert not logits.isnan().any()


def test_an_answer_that_falls_behind_is_marked_more_strongly_and_not_in_circles() -> None:
    settings = config()
    processor, key = opened(settings), keys_of(settings)("")
    processor.admit(0, Sampling(), ids(1), ids())
    seen: set[tuple[int, int]] = set()
    text, strengths = [1], []
    for i in range(300):
        after = added(processor, 0)
        strengths.append(max(after))
        if i > 32:
            assert all(after[token] == 0.0 for context, token in seen if context == text[-1])
        # Never green, if it can be, from few tokens: as a model that is sure of its words.
        token = next(t for t in range(20) if not is_green(key, text[-1:], t, 0.25))
        seen |= {(text[-1], token)} if i else set()
        text.append(token)
        processor.append(torch.tensor([0]), torch.tensor([token]))
    assert strengths[:33] == [2.0] * 33
    assert strengths[33:] == sorted(strengths[33:])
    assert strengths[33] < 4.0
    assert strengths[-1] == 24.0


@pytest.mark.parametrize("context", [1, 2])
def test_the_addend_follows_what_a_detector_would_count(context: int) -> None:
    """A long and a short answer at once, in blocks of one line."""
    vocab = 140_000
    settings = config(context=context)
    processor, key = opened(settings, vocab=vocab), keys_of(settings)("")
    draw = np.random.default_rng(context)
    texts = [[], draw.integers(0, 9, 240).tolist()]
    for row in (0, 1):
        processor.admit(row, Sampling(), ids(3, 3), ids(*texts[row][:180]))
    for i in range(60):
        logits = torch.zeros(2, vocab)
        processor.apply(logits, torch.tensor([1, 0]), torch.tensor([0, 1]))
        for line, text in ((1, texts[0]), (0, texts[1][: 180 + i])):
            found = detect(text, key, 0.25, context)
            share = min(1.0, max(0.0, (len(text) - 32) / 168))
            needed = share * 6 * math.sqrt(0.25 * 0.75 * max(len(text), 200))
            missing = max(0.0, needed - (found.num_green - 0.25 * found.num_scored))
            assert float(logits[line].max()) == pytest.approx(min(24.0, 2 + 2 * missing))
            seen = {
                text[j]
                for j in range(context, len(text))
                if text[j - context : j] == text[len(text) - context :]
            }
            before = [3, 3, *text][-context:]
            for token in range(9):
                raised = is_green(key, before, token, 0.25) and not (missing and token in seen)
                assert (float(logits[line, token]) > 0) is raised
        tokens = [int(draw.integers(0, 9)), texts[1][180 + i]]
        texts[0].append(tokens[0])
        processor.append(torch.tensor([0, 1]), torch.tensor(tokens))


def test_an_answer_that_is_marked_well_gets_no_more_than_delta() -> None:
    settings = config()
    processor, key = opened(settings), keys_of(settings)("")
    processor.admit(0, Sampling(), ids(1), ids())
    draw, last = np.random.default_rng(0), 1
    for i in range(400):
        assert max(added(processor, 0)) == 2.0
        wants_green = i % 2 == 0
        token = next(
            t
            for t in draw.permutation(VOCAB).tolist()
            if is_green(key, [last], t, 0.25) is wants_green
        )
        processor.append(torch.tensor([0]), torch.tensor([token]))
        last = token


@pytest.mark.parametrize("length", [1, 2, 31, 40, 200, 333])
def test_an_answer_that_is_admitted_again_goes_on_as_before(length: int) -> None:
    steady, moved = opened(config(context=2)), opened(config(context=2))
    text = np.random.default_rng(length).integers(0, 9, length).tolist()
    steady.admit(0, Sampling(tenant="a"), ids(7, 8), ids())
    for token in text:
        steady.append(torch.tensor([0]), torch.tensor([token]))
    moved.admit(5, Sampling(tenant="a"), ids(7, 8), ids(*text))
    assert added(moved, 5) == added(steady, 0)
    for processor, row in ((steady, 0), (moved, 5)):
        processor.append(torch.tensor([row]), torch.tensor([3]))
    assert added(moved, 5) == added(steady, 0)


@pytest.mark.parametrize(
    ("requests", "wish", "marked"),
    [
        ("all", None, True),
        ("all", True, True),
        ("opt_out", None, True),
        ("opt_out", False, False),
        ("opt_in", None, False),
        ("opt_in", True, True),
    ],
)
def test_who_is_marked(requests: Any, wish: bool | None, marked: bool) -> None:
    processor = opened(config(requests=requests))
    extra = {} if wish is None else {"watermark": wish}
    assert processor.admit(0, Sampling(extra=extra), ids(1), ids()) is marked


@pytest.mark.parametrize(("requests", "wish"), [("all", False), ("opt_in", 1), ("opt_out", "no")])
def test_a_wish_that_cannot_be_is_refused(requests: Any, wish: Any) -> None:
    processor = opened(config(requests=requests))
    with pytest.raises(RequestRefused, match=r"extra_args\.watermark is"):
        processor.admit(0, Sampling(extra={"watermark": wish}), ids(1), ids())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "set either secret or secret_file"),
        ({"secret": "x" * 16, "secret_file": "f"}, "set either secret or secret_file"),
        ({"secret": "hunter2"}, "shorter than 16 characters"),
        ({"secret": SECRET, "gamma": 0.95}, "less than or equal to 0.9"),
        ({"secret": SECRET, "delta": 5.0, "max_delta": 4.0}, "max_delta is 4.0"),
    ],
)
def test_settings_that_make_no_mark_are_refused(settings: Any, sentence: str) -> None:
    with pytest.raises(BadSettings, match=sentence) as refusal:
        decode("logits_processor.watermark", WatermarkConfig, settings)
    assert "hunter2" not in str(refusal.value)


def test_a_secret_from_a_file_is_the_same_secret(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    from_file = keys_of(WatermarkConfig(secret_file=str(file)))
    assert from_file("acme") == keys_of(config())("acme")
    file.write_text("short\n")
    with pytest.raises(ValueError, match="fewer than 16"):
        keys_of(WatermarkConfig(secret_file=str(file)))


def test_every_tenant_has_a_key_of_its_own() -> None:
    key_of = keys_of(config())
    keys = {key_of(tenant) for tenant in ("", "a", "b", "ab", "a\0")}
    assert len(keys) == 5
    assert all(len(key) == 32 for key in keys)
    assert keys_of(WatermarkConfig(secret=SECRET + "!"))("a") not in keys
