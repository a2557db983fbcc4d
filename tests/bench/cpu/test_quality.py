"""Reference probabilities for llama-perplexity, and what it prints."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import torch

from gatewayd_engine.offline.quality.job import QualityFigures, Sample
from tests.bench.cpu.quality import SchemeQuality, markdown, packed, parsed, write_reference

PRINTED = """\
====== Perplexity statistics ======
Mean PPL(Q)                   :   1.294348 ±   0.027014
Mean PPL(base)                :   1.254762 ±   0.024451
====== KL divergence statistics ======
Mean    KLD:   0.035774 ±   0.004621
99.9%   KLD:   2.100000
99.0%   KLD:   0.741250
Same top p: 96.542 ± 0.345 %
"""


def unpacked(row: np.ndarray, vocab: int) -> np.ndarray:
    """As llama.cpp's ``kl_divergence`` reads a row."""
    step, least = row[:4].view(np.float32)
    return np.asarray(step * row[4 : 4 + vocab].astype(np.float64) + least)


@pytest.mark.parametrize("vocab", [8, 9])
def test_packed_probabilities_are_read_back(vocab: int) -> None:
    logits = np.random.default_rng(3).normal(0, 2, (5, vocab)).astype(np.float32)
    logits[2, 1] = -100  # further below than the file reaches
    made = packed(logits)
    assert made.shape == (5, 4 + vocab + vocab % 2)
    expected = torch.from_numpy(logits).double().log_softmax(-1).numpy()
    expected[2, 1] = expected[2].max() - 16
    for row, values in zip(made, expected, strict=True):
        assert np.abs(unpacked(row, vocab) - values).max() < 2e-4


def test_even_probabilities_have_no_step() -> None:
    assert np.allclose(unpacked(packed(np.zeros((1, 4), np.float32))[0], 4), np.log(0.25))


def test_a_reference_has_windows_then_rows_of_their_second_halves() -> None:
    samples = [Sample("code", [1, 2, 3, 4, 5, 6], 3), Sample("code", [6, 5, 4, 3, 2, 1], 3)]
    logits = [torch.randn(3, 8), torch.randn(3, 8)]
    file = io.BytesIO()
    write_reference(file, samples, iter(logits))
    content = file.getvalue()
    assert content[:8] == b"_logits_"
    assert struct.unpack("<Iii", content[8:20]) == (6, 8, 2)
    ids = np.frombuffer(content[20:68], np.int32)
    assert ids.tolist() == [1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1]
    # Positions 3 and 4 have a successor, 5 has none.
    stored = np.frombuffer(content[68:], np.uint16).reshape(4, 12)
    expected = np.concatenate([packed(one[:2].numpy()) for one in logits])
    assert (stored == expected).all()


def test_statistics_are_found() -> None:
    found = parsed(PRINTED, 510)
    assert found.agreement == pytest.approx(0.96542)
    assert (found.perplexity, found.kl_mean, found.kl_p99) == (1.294348, 0.035774, 0.74125)


def test_output_without_its_end_is_refused() -> None:
    with pytest.raises(RuntimeError, match="no agreement"):
        parsed(PRINTED.partition("Same")[0], 510)


def test_a_row_for_each_side() -> None:
    figures = QualityFigures(510, 1.25, agreement=0.998, kl_mean=0.0012)
    table = markdown([SchemeQuality("Q8_0", "gatewayd", {"chats": figures, "code": figures})])
    cells = "1.2500 | 99.80% | 0.00120"
    assert table.splitlines()[-1] == f"| Q8_0 | gatewayd | {cells} | {cells} |"
