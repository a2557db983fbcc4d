"""Simulated decoding for KV compression strategies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_hooks.resources import KvShape

SHAPE = KvShape(
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    scale=0.25,
    softcap=None,
    windows=(0, 0),
)


class Decoding:
    """Decoding sequences with pseudorandom attention.

    Args:
        strategy: opened.
        starts: number of tokens of each row, by row.
        seed: of the attention weights.

    Attributes:
        selected: every checked result of ``select``: row, layer, length, positions.
    """

    def __init__(self, strategy: Any, starts: dict[int, int], seed: int = 0) -> None:  # noqa: ANN401
        self._strategy = strategy
        self._starts = starts
        self._seed = seed
        self.selected: list[tuple[int, int, int, list[list[int]]]] = []
        self._failing: int | None = None
        self._times = 1
        for row in starts:
            strategy.admit(row)

    def run(self, steps: int, first: int = 0, again: int = 0) -> None:
        """Decode; each token whose step is a multiple of ``again`` is observed twice."""
        for step in range(first, first + steps):
            self._times = 2 if again and not step % again else 1
            self._step(step)

    def fail(self, row: int, step: int) -> None:
        """Decode a token of each row, where the attention of one row is NaN."""
        self._failing = row
        self._step(step)
        self._failing = None

    def move(self, row: int, to: int) -> None:
        """Move a sequence to another row."""
        self._starts[to] = self._starts.pop(row)

    def _step(self, step: int) -> None:
        rows = np.array(sorted(self._starts))
        lengths = np.array([self._starts[int(row)] + step + 1 for row in rows])
        budgets = self._budgets(rows, lengths)
        is_sparse = (budgets > 0) & (budgets < lengths)
        selected: list[torch.Tensor | None] = [None] * SHAPE.num_layers
        if is_sparse.any():
            few = rows[is_sparse], lengths[is_sparse], budgets[is_sparse]
            selected = [self._select(layer, *few) for layer in range(SHAPE.num_layers)]
        for layer, found in enumerate(selected):
            weights = [
                self._weights(int(r), int(n), layer) for r, n in zip(rows, lengths, strict=True)
            ]
            dense = ~is_sparse if found is not None else np.ones(len(rows), np.bool_)
            if dense.any():
                every = [weights[i] for i in np.flatnonzero(dense)]
                self._observe(layer, rows[dense], lengths[dense], _padded(every), None)
            if found is not None:
                theirs = [weights[i] for i in np.flatnonzero(is_sparse)]
                self._observe(
                    layer, rows[is_sparse], lengths[is_sparse], _at(_padded(theirs), found), found
                )

    def _budgets(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        budgets = self._strategy.budgets(rows.copy(), lengths.copy())
        assert isinstance(budgets, np.ndarray)
        assert budgets.shape == rows.shape
        assert np.issubdtype(budgets.dtype, np.integer)
        assert (budgets >= 0).all()
        # The engine may compute a step again.
        again = self._strategy.budgets(rows.copy(), lengths.copy())
        assert (again == budgets).all(), "a repeated step has other budgets"
        return budgets.astype(np.int64)

    def _select(
        self,
        layer: int,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        budgets: NDArray[np.int64],
    ) -> torch.Tensor | None:
        places: torch.Tensor | None = self._strategy.select(layer, rows, lengths, budgets)
        again = self._strategy.select(layer, rows, lengths, budgets)
        assert (places is None) == (again is None)
        if places is None or again is None:
            return None
        assert torch.equal(places, again), "a repeated step selects other positions"
        assert places.dtype == torch.int64
        assert places.shape[:2] == (len(rows), SHAPE.num_kv_heads)
        for i, row in enumerate(rows.tolist()):
            heads = []
            for head in places[i].tolist():
                own = [place for place in head if place >= 0]
                assert head[: len(own)] == own, "there are positions after the padding"
                assert all(place == -1 for place in head[len(own) :])
                assert len(own) <= budgets[i], "more positions than the budget"
                assert len(set(own)) == len(own), "a position is duplicated"
                assert max(own, default=-1) < lengths[i], "a position beyond the length"
                assert int(lengths[i]) - 1 in own, "the newest position is not selected"
                heads.append(sorted(own))
            self.selected.append((row, layer, int(lengths[i]), heads))
        return places

    def _observe(
        self,
        layer: int,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        weights: torch.Tensor,
        places: torch.Tensor | None,
    ) -> None:
        if self._failing is not None:
            # Also beyond its length: NaN survives a multiplicative mask.
            weights[torch.from_numpy(rows == self._failing)] = torch.nan
        before = weights.clone()
        for _ in range(self._times):
            self._strategy.observe(layer, rows, lengths, weights, places)
        is_same = torch.allclose(weights, before, rtol=0, atol=0, equal_nan=True)
        assert is_same, "it modifies its input"

    def _weights(self, row: int, length: int, layer: int) -> torch.Tensor:
        """Return the attention of a token, ``[num_heads, length]``; depends on the row's start."""
        # Not of the row's number: a sequence has the same attention in any row.
        seed = (self._seed * 1_000_003 + self._starts[row]) * 4_001 + length * 7 + layer
        generator = torch.Generator().manual_seed(seed)
        scores = 3 * torch.randn(SHAPE.num_heads, length, generator=generator)
        return torch.softmax(scores, -1)


def _padded(weights: list[torch.Tensor]) -> torch.Tensor:
    longest = max(one.shape[-1] for one in weights)
    return torch.stack([torch.nn.functional.pad(w, (0, longest - w.shape[-1])) for w in weights])


def _at(weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the attention renormalized over the selected positions."""
    by_head = torch.unflatten(weights, 1, (SHAPE.num_kv_heads, -1))
    index = places.clamp_min(0)[:, :, None].expand(-1, -1, by_head.shape[2], -1)
    few = by_head.gather(-1, index).masked_fill((places < 0)[:, :, None], 0)
    return (few / few.sum(-1, keepdim=True)).flatten(1, 2)
