"""Conformance tests of KV compression strategies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gatewayd_hooks.kv_compression import Compacts, KvCompressionStrategy, Moves, Selects
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.testing.simulation.decoding import SHAPE, Decoding
from gatewayd_hooks.testing.simulation.resources import engine_resources

_STEPS = 40
_FAILS_AT = 27, 39
"""Number of steps before the one in which a request fails: selection starts late, if at all."""


class KvCompressionConformance:
    """Subclass it and build your strategy in ``make``."""

    def make(self) -> KvCompressionStrategy:
        """Build the strategy; the tests open and close it, and make many."""
        raise NotImplementedError("return your strategy, built and not opened")

    def resources(self) -> EngineResources:
        """Return the resources that it is opened with; the attention is ``SHAPE``."""
        return replace(engine_resources(), kv_shape=SHAPE)

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Yield an opened strategy."""
        strategy = self.make()
        try:
            strategy.open(self.resources())
            yield strategy
        finally:
            strategy.close()

    @contextmanager
    def selecting(self) -> Iterator[Any]:
        """Yield an opened strategy; None if it does not select."""
        with self.opened() as strategy:
            yield strategy if isinstance(strategy, Selects) else None

    @contextmanager
    def compacting(self) -> Iterator[Any]:
        """Yield an opened strategy; None if it does not compact."""
        with self.opened() as strategy:
            yield strategy if isinstance(strategy, Compacts) else None

    def test_it_selects_or_compacts(self) -> None:
        with self.opened() as strategy:
            assert isinstance(strategy, Selects | Compacts)

    def test_selected_tokens_exist_and_are_within_the_budget(self) -> None:
        with self.selecting() as strategy:
            if strategy is None:
                return
            decoding = Decoding(strategy, {0: 300, 2: 340, 5: 517})
            decoding.run(_STEPS)
            assert decoding.selected, f"nothing was selected in {_STEPS} steps"

    def test_short_sequences_are_supported(self) -> None:
        with self.selecting() as strategy:
            if strategy is None:
                return
            Decoding(strategy, {1: 0, 3: 7}).run(40)

    def test_a_row_has_no_state_of_its_previous_sequence(self) -> None:
        with self.selecting() as fresh:
            if fresh is None:
                return
            expected = Decoding(fresh, {4: 320})
            expected.run(_STEPS)
        with self.opened() as used:
            Decoding(used, {4: 700}, seed=1).run(_STEPS)
            again = Decoding(used, {4: 320})
            again.run(_STEPS)
        assert again.selected == expected.selected

    def test_a_repeated_token_counts_once(self) -> None:
        starts = {0: 330, 3: 517}
        with self.selecting() as strategy:
            if strategy is None:
                return
            expected = Decoding(strategy, starts)
            expected.run(_STEPS + 20)
        with self.opened() as strategy:
            again = Decoding(strategy, starts)
            again.run(_STEPS + 20, again=3)
        assert again.selected == expected.selected

    def test_a_failed_request_leaves_no_state_in_its_row(self) -> None:
        with self.selecting() as fresh:
            if fresh is None:
                return
            expected = Decoding(fresh, {4: 500})
            expected.run(_STEPS + 12)
        for steps in _FAILS_AT:
            with self.opened() as used:
                failed = Decoding(used, {2: 700, 4: 260}, seed=1)
                failed.run(steps)
                failed.fail(4, steps)
                again = Decoding(used, {4: 500})
                again.run(_STEPS + 12)
            assert again.selected == expected.selected

    def test_rows_are_independent(self) -> None:
        starts = {0: 300, 3: 333, 6: 610}
        with self.selecting() as strategy:
            if strategy is None:
                return
            together = Decoding(strategy, starts)
            together.run(_STEPS)
        for row, start in starts.items():
            with self.opened() as strategy:
                # In another row: results must not depend on its number either.
                alone = Decoding(strategy, {7 - row: start})
                alone.run(_STEPS)
            expected = [one[1:] for one in together.selected if one[0] == row]
            assert [one[1:] for one in alone.selected] == expected

    def test_a_sequence_moved_to_another_row_keeps_its_state(self) -> None:
        with self.selecting() as strategy:
            if not isinstance(strategy, Moves):
                return
            expected = Decoding(strategy, {4: 320})
            expected.run(_STEPS)
        with self.opened() as strategy:
            moved = Decoding(strategy, {4: 320})
            moved.run(_STEPS // 2)
            known = strategy.leave(4)
            Decoding(strategy, {4: 500, 2: 100}, seed=1).run(5)
            strategy.enter(2, known)
            moved.move(4, 2)
            moved.run(_STEPS - _STEPS // 2, _STEPS // 2)
        assert [one[1:] for one in moved.selected] == [one[1:] for one in expected.selected]

    # Compaction

    def test_a_plan_has_whole_pages_and_depends_only_on_the_prompt(self) -> None:
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
            # Recomputed, with an answer after the prompt and in another batch.
            for row in rows.tolist():
                strategy.admit(row)
                one = np.array([row])
                again = strategy.plan(one, prompts[one] + 20, prompts[one])
                assert list(again) == [each for each in planned if each.row == row]

    def test_compaction_is_finite_and_deterministic(self) -> None:
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
                    assert torch.equal(now, before), f"{name}: it modifies its input"
                again = strategy.compact(0, queries, keys, values, 32)
                for one, other in zip(found, again, strict=True):
                    assert torch.equal(one, other), f"{name}: results differ between calls"

    def test_compaction_to_the_original_size_is_exact(self) -> None:
        with self.compacting() as strategy:
            if strategy is None:
                return
            queries, keys, values = _contexts()["normal"]
            expected, mass = _attended(queries, keys, torch.zeros(keys.shape[:2]), values)
            found = strategy.compact(0, queries, keys, values, keys.shape[1])
            answer, its_mass = _attended(queries, found.keys, found.bias, found.values)
            assert torch.allclose(answer, expected, atol=1e-3)
            assert torch.allclose(its_mass, mass, atol=1e-3)

    def test_compaction_to_more_tokens_loses_less(self) -> None:
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
    """Return queries ``[kv_heads, n, dim]``, keys and values ``[kv_heads, 128, dim]``."""
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
    """Return attention over all keys, and the log-sum-exp of the scores."""
    scores = SHAPE.scale * queries @ keys.transpose(1, 2) + bias[:, None]
    return torch.softmax(scores, -1) @ values, scores.logsumexp(-1)
