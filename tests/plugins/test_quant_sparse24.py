"""``quantizer.sparse24`` against the kit, and against a search among all pairs of four."""

from __future__ import annotations

import itertools
import logging

import pytest
import torch

from gatewayd_hooks.quantization import Matrix
from gatewayd_hooks.testing.quantization import QuantizerConformance
from gatewayd_quant_sparse24 import strategy
from gatewayd_quant_sparse24.strategy import Sparse24


class TestSparse24(QuantizerConformance):
    def make(self) -> Sparse24:
        return Sparse24()


def thinned(weight: torch.Tensor) -> torch.Tensor:
    made = Sparse24().quantize(Matrix("m", *weight.shape), weight)
    assert made is not None
    return made.values


@pytest.mark.parametrize("block", [1, 64, 1 << 20])
def test_the_pair_of_four_that_has_most_stays(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy, "_BLOCK", block)
    weight = torch.randn(9, 32)
    weight[2] = torch.randint(-2, 3, (32,)).float()  # many are as large as others
    values = thinned(weight)
    for row in range(9):
        for begin in range(0, 32, 4):
            four = weight[row, begin : begin + 4]
            best = max(itertools.combinations(range(4), 2), key=lambda p: four[list(p)].abs().sum())
            meant = torch.zeros(4)
            meant[list(best)] = four[list(best)]
            found = values[row, begin : begin + 4]
            assert torch.equal(found.abs().sort().values, meant.abs().sort().values)
            assert torch.equal(found[found != 0], four[found != 0])
            assert not found.signbit()[found == 0].any()


def test_of_equals_the_first_stay_and_what_is_thin_stays_as_it_is() -> None:
    assert thinned(torch.ones(1, 8)).tolist() == [[1.0, 1.0, 0.0, 0.0] * 2]
    once = thinned(torch.randn(8, 64))
    assert torch.equal(thinned(once), once)


def test_the_head_and_columns_that_are_no_fours_stay(caplog: pytest.LogCaptureFixture) -> None:
    assert Sparse24().quantize(Matrix("lm_head", 2, 8), torch.ones(2, 8)) is None
    with caplog.at_level(logging.WARNING):
        assert Sparse24().quantize(Matrix("a.o_proj", 2, 6), torch.ones(2, 6)) is None
    assert [record.getMessage() for record in caplog.records] == [
        "a.o_proj stays as it is: 6 columns are no multiple of 4"
    ]
