"""What every KV compression must do, whatever it leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_hooks.kv_compression import Compacts, KvCompressionStrategy, Selects
from gatewayd_hooks.resources import EngineResources, KvShape
from gatewayd_hooks.testing.resources import engine_resources

SHAPE = KvShape(
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    scale=0.25,
    softcap=None,
    windows=(0, 0),
)
_STEPS = 40


class _Decoding:
    """Sequences that decode, each token of which attends to what a seed says.

    Attributes:
        selected: every answer of ``select`` that was checked: row, layer, length, places.
    """

    def __init__(self, strategy: Any, starts: dict[int, int], seed: int = 0) -> None:  # noqa: ANN401
        self._strategy = strategy
        self._starts = starts
        self._seed = seed
        self.selected: list[tuple[int, int, int, list[list[int]]]] = []
        for row in starts:
            strategy.admit(row)

    def run(self, steps: int) -> None:
        """Decode."""
        for step in range(steps):
            self._step(step)

    def _step(self, step: int) -> None:
        rows = np.array(sorted(self._starts))
        lengths = np.array([self._starts[int(row)] + step + 1 for row in rows])
        budgets = self._budgets(rows, lengths)
        is_sparse = (budgets > 0) & (budgets < lengths)
        for layer in range(SHAPE.num_layers):
            weights = [
                self._weights(int(r), int(n), layer) for r, n in zip(rows, lengths, strict=True)
            ]
            found = None
            if is_sparse.any():
                found = self._select(layer, rows[is_sparse], lengths[is_sparse], budgets[is_sparse])
            dense = ~is_sparse if found is not None else np.ones(len(rows), np.bool_)
            if dense.any():
                every = [weights[i] for i in np.flatnonzero(dense)]
                self._observe(layer, rows[dense], lengths[dense], _padded(every), None)
            if found is not None:
                few = [weights[i] for i in np.flatnonzero(is_sparse)]
                self._observe(
                    layer, rows[is_sparse], lengths[is_sparse], _at(_padded(few), found), found
                )

    def _budgets(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        budgets = self._strategy.budgets(rows.copy(), lengths.copy())
        assert isinstance(budgets, np.ndarray)
        assert budgets.shape == rows.shape
        assert np.issubdtype(budgets.dtype, np.integer)
        assert (budgets >= 0).all()
        again = self._strategy.budgets(rows.copy(), lengths.copy())
        assert (again == budgets).all(), "a step that is computed again has other budgets"
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
        assert torch.equal(places, again), "a step that is computed again selects others"
        assert places.dtype == torch.int64
        assert places.shape[:2] == (len(rows), SHAPE.num_kv_heads)
        for i, row in enumerate(rows.tolist()):
            heads = []
            for head in places[i].tolist():
                own = [place for place in head if place >= 0]
                assert head[: len(own)] == own, "there are places behind none"
                assert all(place == -1 for place in head[len(own) :])
                assert len(own) <= budgets[i], "more places than the budget"
                assert len(set(own)) == len(own), "a place is there twice"
                assert max(own, default=-1) < lengths[i], "a place that is not there yet"
                assert int(lengths[i]) - 1 in own, "the newest place is not selected"
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
        before = weights.clone()
        self._strategy.observe(layer, rows, lengths, weights, places)
        assert torch.equal(weights, before), "it changes what it is shown"

    def _weights(self, row: int, length: int, layer: int) -> torch.Tensor:
        """Attention of a token, ``[num_heads, length]``; it follows from where the row began."""
        seed = (self._seed * 1_000_003 + self._starts[row]) * 4_001 + length * 7 + layer
        generator = torch.Generator().manual_seed(seed)
        scores = 3 * torch.randn(SHAPE.num_heads, length, generator=generator)
        return torch.softmax(scores, -1)


def _padded(weights: list[torch.Tensor]) -> torch.Tensor:
    longest = max(one.shape[-1] for one in weights)
    return torch.stack([torch.nn.functional.pad(w, (0, longest - w.shape[-1])) for w in weights])


def _at(weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """What is left of attention where only some places are seen."""
    by_head = torch.unflatten(weights, 1, (SHAPE.num_kv_heads, -1))
    index = places.clamp_min(0)[:, :, None].expand(-1, -1, by_head.shape[2], -1)
    few = by_head.gather(-1, index).masked_fill((places < 0)[:, :, None], 0)
    return (few / few.sum(-1, keepdim=True)).flatten(1, 2)


class KvCompressionConformance:
    """Subclass it and build your strategy in ``make``."""

    def make(self) -> KvCompressionStrategy:
        """Build the strategy; the tests open and close it, and make many."""
        raise NotImplementedError("return your strategy, built and not opened")

    def resources(self) -> EngineResources:
        """What it is opened with; its attention is ``SHAPE``."""
        return replace(engine_resources(), kv_shape=SHAPE)

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """A compression in use."""
        strategy = self.make()
        try:
            strategy.open(self.resources())
            yield strategy
        finally:
            strategy.close()

    @contextmanager
    def selecting(self) -> Iterator[Any]:
        """The same; None for one that does not select."""
        with self.opened() as strategy:
            yield strategy if isinstance(strategy, Selects) else None

    @contextmanager
    def compacting(self) -> Iterator[Any]:
        """The same; None for one that does not compact."""
        with self.opened() as strategy:
            yield strategy if isinstance(strategy, Compacts) else None

    def test_it_selects_or_compacts(self) -> None:
        with self.opened() as strategy:
            assert isinstance(strategy, Selects | Compacts)

    def test_what_it_selects_is_there_and_within_the_budget(self) -> None:
        with self.selecting() as strategy:
            if strategy is None:
                return
            decoding = _Decoding(strategy, {0: 300, 2: 340, 5: 517})
            decoding.run(_STEPS)
            assert decoding.selected, f"it selected nothing in {_STEPS} steps"

    def test_short_sequences_are_served_too(self) -> None:
        with self.selecting() as strategy:
            if strategy is None:
                return
            _Decoding(strategy, {1: 0, 3: 7}).run(40)

    def test_a_row_knows_nothing_of_the_sequence_before(self) -> None:
        with self.selecting() as fresh:
            if fresh is None:
                return
            expected = _Decoding(fresh, {4: 320})
            expected.run(_STEPS)
        with self.opened() as used:
            _Decoding(used, {4: 700}, seed=1).run(_STEPS)
            again = _Decoding(used, {4: 320})
            again.run(_STEPS)
        assert again.selected == expected.selected

    def test_rows_do_not_depend_on_one_another(self) -> None:
        starts = {0: 300, 3: 333, 6: 610}
        with self.selecting() as strategy:
            if strategy is None:
                return
            together = _Decoding(strategy, starts)
            together.run(_STEPS)
        for row, start in starts.items():
            with self.opened() as strategy:
                alone = _Decoding(strategy, {7 - row: start})
                alone.run(_STEPS)
            expected = [one[1:] for one in together.selected if one[0] == row]
            assert [one[1:] for one in alone.selected] == expected

    # Compaction

    def test_what_is_planned_is_whole_pages_and_follows_from_prompts(self) -> None:
        with self.compacting() as strategy:
            if strategy is None:
                return
            size = self.resources().page_size
            rows, prompts = np.arange(4), np.array([15, 200, 700, 1000])
            for row in rows.tolist():
                strategy.admit(row)
            planned = list(strategy.plan(rows, prompts, prompts))
            for row, covered, kept, queries in planned:
                assert row in rows
                assert queries > 0
                assert covered % size == kept % size == 0
                assert 0 < kept < covered <= prompts[row]
            assert len({one.row for one in planned}) == len(planned)
        with self.opened() as strategy:
            # Computed again, with an answer behind the prompt and in another company.
            for row in rows.tolist():
                strategy.admit(row)
                one = np.array([row])
                again = strategy.plan(one, prompts[one] + 20, prompts[one])
                assert list(again) == [each for each in planned if each.row == row]

    def test_what_is_compacted_is_finite_and_the_same_each_time(self) -> None:
        with self.compacting() as strategy:
            if strategy is None:
                return
            for name, (queries, keys, values) in _contexts().items():
                given = [tensor.clone() for tensor in (queries, keys, values)]
                found = strategy.compact(0, queries, keys, values, 32)
                heads, _, dim = keys.shape
                assert found.keys.shape == found.values.shape == (heads, 32, dim), name
                assert found.bias.shape == (heads, 32), name
                for tensor in found:
                    assert bool(tensor.isfinite().all()), f"{name}: not finite"
                for now, before in zip((queries, keys, values), given, strict=True):
                    assert torch.equal(now, before), f"{name}: it changes what it is given"
                again = strategy.compact(0, queries, keys, values, 32)
                for one, other in zip(found, again, strict=True):
                    assert torch.equal(one, other), f"{name}: not the same twice"

    def test_as_many_as_there_were_attend_alike(self) -> None:
        with self.compacting() as strategy:
            if strategy is None:
                return
            queries, keys, values = _contexts()["normal"]
            expected, mass = _attended(queries, keys, torch.zeros(keys.shape[:2]), values)
            found = strategy.compact(0, queries, keys, values, keys.shape[1])
            answer, its_mass = _attended(queries, found.keys, found.bias, found.values)
            assert torch.allclose(answer, expected, atol=1e-3)
            assert torch.allclose(its_mass, mass, atol=1e-3)

    def test_more_that_are_kept_lose_less(self) -> None:
        with self.compacting() as strategy:
            if strategy is None:
                return
            queries, keys, values = _contexts()["normal"]
            expected, _ = _attended(queries, keys, torch.zeros(keys.shape[:2]), values)
            errors = []
            for kept in (16, 64, 128):
                found = strategy.compact(0, queries, keys, values, kept)
                answer, _ = _attended(queries, found.keys, found.bias, found.values)
                errors.append(float((answer - expected).norm() / expected.norm()))
            assert errors == sorted(errors, reverse=True), errors


def _contexts() -> dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Queries ``[kv_heads, n, dim]``, keys and values ``[kv_heads, 128, dim]``."""
    generator = torch.Generator().manual_seed(11)
    heads, dim, covered = SHAPE.num_kv_heads, SHAPE.head_dim, 128

    def normal(count: int) -> torch.Tensor:
        return torch.randn(heads, count, dim, generator=generator)

    queries, keys, values = normal(96), normal(covered), normal(covered)
    one = keys[:, :1].expand(-1, covered, -1).contiguous()
    return {
        "normal": (queries, keys, values),
        "keys that are all the same": (queries, one, values),
        "one query": (queries[:, :1], keys, values),
        "sharp": (queries * 8, keys * 4, values),
        "zeros": (queries * 0, keys * 0, values * 0),
    }


def _attended(
    queries: torch.Tensor, keys: torch.Tensor, bias: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over all keys, and the logarithm of their mass."""
    scores = SHAPE.scale * queries @ keys.transpose(1, 2) + bias[:, None]
    return torch.softmax(scores, -1) @ values, scores.logsumexp(-1)
