"""``quantizer.sparse24``: the kit, and pairs equal a search of all."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace

import pytest
import torch

from gatewayd_hooks.quantization import Matrix, Site
from gatewayd_hooks.testing.quantization import QuantizerConformance
from gatewayd_quant_sparse24 import strategy
from gatewayd_quant_sparse24.pruning import pruned
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
        "a.o_proj not pruned: 6 columns are not a multiple of 4"
    ]


def inputs_of(columns: int, count: int) -> torch.Tensor:
    """Rows that depend on each other, of several sizes."""
    mixed = torch.randn(columns, columns, dtype=torch.float64) / columns**0.5
    x = torch.randn(count, columns, dtype=torch.float64) @ (mixed + 0.5 * torch.eye(columns))
    made: torch.Tensor = x * torch.linspace(0.3, 2, columns, dtype=torch.float64)
    return made


def brute(weight: torch.Tensor, gram: torch.Tensor) -> torch.Tensor:
    """SparseGPT by its definition: after each column the inverse of what remains is made anew."""
    rest = weight.double().clone()
    columns = rest.shape[1]
    damped = gram + 0.01 * gram.diagonal().mean() * torch.eye(columns)
    for column in range(columns):
        inverse = torch.linalg.inv(damped[column:, column:])
        if column % 4 == 0:
            # Pivots of the four, each when those before it are gone.
            pivots = [torch.linalg.inv(damped[c:, c:])[0, 0] for c in range(column, column + 4)]
            costs = rest[:, column : column + 4].square() / torch.stack(pivots)
            goes = torch.zeros_like(costs, dtype=torch.bool)
            goes.scatter_(1, costs.argsort(1)[:, :2], value=True)
        error = torch.where(goes[:, column % 4], rest[:, column], 0.0) / inverse[0, 0]
        rest[:, column:] -= torch.outer(error, inverse[0])
        rest[goes[:, column % 4], column] = 0.0
    return rest


def site_of(rows: int, x: torch.Tensor) -> Site:
    matrices = tuple(Matrix(f"{name}_proj", rows, x.shape[1]) for name in ("gate", "up"))
    weights = tuple(torch.randn(rows, x.shape[1]) for _ in matrices)
    return Site(matrices, weights, x.float(), x.t() @ x / len(x), lambda others: 0.0)


@pytest.mark.parametrize("columns", [8, 64, 160])
def test_what_stays_is_what_the_definition_leaves(columns: int) -> None:
    """Also beyond a block of columns, whose losses are spread at its end."""
    site = site_of(12, inputs_of(columns, 400))
    for made, weight in zip(Sparse24().prune(site), site.weights, strict=True):
        expected = brute(weight, site.gram)
        # Two numbers may cost nearly the same: then another goes, and the rest of the row differs.
        is_same = ((made.values - expected).abs() < 1e-3).all(1)
        assert is_same.double().mean() > 0.8
        assert (torch.unflatten(made.values != 0, 1, (-1, 4)).sum(-1) <= 2).all()
        assert not made.values.signbit()[made.values == 0].any()


def test_more_damping_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    # Its smallest eigenvalue is -0.5: a diagonal of one needs at least 0.5 more.
    gram = torch.eye(8, dtype=torch.float64)
    gram[0, 1] = gram[1, 0] = 1.5
    with caplog.at_level(logging.INFO):
        assert pruned(torch.randn(4, 8), gram) is not None
    assert [record.getMessage() for record in caplog.records] == ["Hessian damped by 1"]


def test_less_is_lost_than_of_the_largest() -> None:
    site = site_of(16, inputs_of(64, 400))
    before = [weight.clone() for weight in site.weights]

    def lost(values: torch.Tensor, weight: torch.Tensor) -> float:
        return float(((values - weight).double() @ site.gram * (values - weight)).sum())

    for made, weight in zip(Sparse24().prune(site), site.weights, strict=True):
        assert lost(made.values, weight) < 0.85 * lost(thinned(weight), weight)
    assert all(torch.equal(*pair) for pair in zip(before, site.weights, strict=True))


def test_what_is_always_zero_goes_first_and_stays_where_nothing_else_is() -> None:
    """Of small inputs too, beside which the weights of columns without any are large."""
    x = inputs_of(64, 400) * 0.01
    unused = [8, 12, 13, 16, 17, 18, *range(20, 24)]
    x[:, unused] = 0
    site = site_of(8, x)
    for made, weight in zip(Sparse24().prune(site), site.weights, strict=True):
        kept = made.values != 0
        assert not kept[:, [8, 12, 13]].any()
        assert kept[:, [14, 15, 19]].all()
        assert (torch.unflatten(kept, 1, (-1, 4)).sum(-1) == 2).all()
        # Nothing was lost that could move them: they are as they were, and the largest.
        largest = weight[:, 16:19].abs().amax(1)
        assert torch.equal(made.values[:, 16:19].abs().sum(1), largest)
        assert torch.equal(made.values[:, 20:24], thinned(weight[:, 20:24].contiguous()))


def test_nothing_but_zeros_leaves_the_largest() -> None:
    """As of an expert that no token was sent to."""
    site = site_of(8, torch.zeros(10, 64, dtype=torch.float64))
    for made, weight in zip(Sparse24().prune(site), site.weights, strict=True):
        assert torch.equal(made.values, thinned(weight))


def test_inputs_of_no_full_rank_do_and_those_without_meaning_leave_the_largest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = inputs_of(64, 20)  # fewer rows than columns: of no full rank
    x[:, :9] = 0
    site = site_of(8, x)
    assert all(made.values.isfinite().all() for made in Sparse24().prune(site))
    broken = replace(site, gram=torch.full((64, 64), float("nan"), dtype=torch.float64))
    made = Sparse24().prune(broken)
    assert torch.equal(made[0].values, thinned(site.weights[0]))
    assert "gate_proj: insufficient calibration data" in caplog.text
    with pytest.raises(ValueError, match="not finite"):
        Sparse24().prune(replace(site, weights=(torch.full((8, 64), torch.nan),) * 2))
