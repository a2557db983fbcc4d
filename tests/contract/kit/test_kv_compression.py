"""KV compression conformance: rejects invalid selections and state kept too long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from gatewayd_hooks.kv_compression import Compacted, Compaction
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.kv_compression import KvCompressionConformance

Verdict = Callable[..., list[str]]
_WITHIN = "test_selected_tokens_exist_and_are_within_the_budget"
_FAILED = "test_a_failed_request_leaves_no_state_in_its_row"
_TWICE = "test_a_repeated_token_counts_once"
_KIND = Kind.KV_COMPRESSION


class _Case(NamedTuple):
    broken: Callable[[Any], None]
    caught_by: str


def _only(test: str) -> type:
    """The kit's class with one of its tests: all of them would take a while for each strategy."""
    own = vars(KvCompressionConformance).items()
    kept = {name: value for name, value in own if not name.startswith("test_") or name == test}
    return type("Only", (), kept)


# Each of these breaks one rule of a sound strategy, which is changed in place.


def _changed(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], None]:
    def broken(strategy: Any) -> None:
        select = strategy.select

        def changed(*args: Any) -> torch.Tensor | None:
            places = select(*args)
            return None if places is None else change(places)

        strategy.select = changed

    return broken


def _twice(places: torch.Tensor) -> torch.Tensor:
    places[..., -1] = places[..., 0]
    return places


def _without_the_newest(places: torch.Tensor) -> torch.Tensor:
    newest = places.amax(-1, keepdim=True)
    return torch.where(places == newest, 0, places)


def remembers_too_long(strategy: Any) -> None:
    strategy.admit = lambda row: None


def forgets_as_far_as_it_was_long(strategy: Any) -> None:
    admit = strategy.admit

    def broken(row: int) -> None:
        length = int(strategy._seen[row])
        beyond = strategy._mass[:, row, :, length:].clone()
        admit(row)
        strategy._mass[:, row, :, length:] = beyond

    strategy.admit = broken


def adds_whatever_it_is_shown(strategy: Any) -> None:
    observe = strategy.observe

    def broken(*args: Any) -> None:
        strategy._added[:] = 0
        observe(*args)

    strategy.observe = broken


def looks_at_neighbours(strategy: Any) -> None:
    observe = strategy.observe

    def broken(layer: int, rows: Any, lengths: Any, weights: Any, places: Any) -> None:
        observe(layer, rows, lengths, weights.mean(0, keepdim=True).expand_as(weights), places)

    strategy.observe = broken


def changes_what_it_is_shown(strategy: Any) -> None:
    observe = strategy.observe

    def broken(layer: int, rows: Any, lengths: Any, weights: Any, places: Any) -> None:
        observe(layer, rows, lengths, weights, places)
        weights.mul_(0.5)

    strategy.observe = broken


def counts_every_question(strategy: Any) -> None:
    budgets, asked = strategy.budgets, [0]

    def broken(rows: Any, lengths: Any) -> Any:
        asked[0] += 1
        return budgets(rows, lengths) + asked[0] % 2

    strategy.budgets = broken


def forgets_where_it_was(strategy: Any) -> None:
    strategy.enter = lambda row, known: strategy.admit(row)


def shares_what_it_knows(strategy: Any) -> None:
    strategy.leave = lambda row: row
    strategy.enter = lambda row, known: None


@pytest.mark.parametrize(
    ("broken", "caught_by"),
    [
        _Case(_changed(_twice), _WITHIN),
        _Case(_changed(_without_the_newest), _WITHIN),
        _Case(_changed(lambda places: places + 1), _WITHIN),
        _Case(_changed(lambda places: torch.cat([places, places + 400], -1)), _WITHIN),
        _Case(_changed(lambda places: places.flip(-1).sub(1)), _WITHIN),
        _Case(_changed(lambda places: places[:, :1]), _WITHIN),
        _Case(_changed(lambda places: places.int()), _WITHIN),
        _Case(counts_every_question, _WITHIN),
        _Case(changes_what_it_is_shown, _WITHIN),
        _Case(remembers_too_long, "test_a_row_has_no_state_of_its_previous_sequence"),
        _Case(forgets_as_far_as_it_was_long, _FAILED),
        _Case(adds_whatever_it_is_shown, _TWICE),
        _Case(looks_at_neighbours, "test_rows_are_independent"),
        _Case(forgets_where_it_was, "test_a_sequence_moved_to_another_row_keeps_its_state"),
        _Case(shares_what_it_knows, "test_a_sequence_moved_to_another_row_keeps_its_state"),
    ],
)
def test_a_broken_one_fails(
    verdict: Verdict, broken: Callable[[Any], None], caught_by: str
) -> None:
    assert verdict(_only(caught_by), _KIND, "heavy", broken) == [caught_by]


class _Everything:
    """Compacts to the first keys and values, with what is missing made up for; a toy."""

    def open(self, resources: Any) -> None:
        pass

    def close(self) -> None:
        pass

    def admit(self, row: int) -> None:
        pass

    def plan(self, rows: Any, lengths: Any, prompt_lens: Any) -> list[Compaction]:
        wanted = zip(rows.tolist(), prompt_lens.tolist(), strict=True)
        return [Compaction(row, n // 16 * 16, n // 32 * 16) for row, n in wanted if n >= 64]

    def compact(self, layer: int, queries: Any, keys: Any, values: Any, kept: int) -> Compacted:
        bias = torch.full((len(keys), kept), float(np.log(keys.shape[1] / kept)))
        return Compacted(keys[:, :kept].clone(), bias, values[:, :kept].clone())


def _compacting(change: Callable[[Any], None] | None = None) -> Any:
    class Case(KvCompressionConformance):
        def make(self) -> Any:
            strategy = _Everything()
            if change is not None:
                change(strategy)
            return strategy

    return Case()


_COMPACTS = [
    "test_a_plan_has_whole_pages_and_depends_only_on_the_prompt",
    "test_compaction_is_finite_and_deterministic",
    "test_compaction_to_the_original_size_is_exact",
    "test_compaction_to_more_tokens_loses_less",
]


@pytest.mark.parametrize("name", _COMPACTS)
def test_one_that_compacts_passes(name: str) -> None:
    getattr(_compacting(), name)()


def plans_by_the_answer(strategy: Any) -> None:
    plan = strategy.plan
    strategy.plan = lambda rows, lengths, prompt_lens: plan(rows, lengths, lengths)


def plans_parts_of_pages(strategy: Any) -> None:
    plan = strategy.plan
    strategy.plan = lambda *args: [one._replace(kept=one.kept + 1) for one in plan(*args)]


def divides_by_what_is_not_there(strategy: Any) -> None:
    compact = strategy.compact

    def broken(*args: Any) -> Compacted:
        found: Compacted = compact(*args)
        return found._replace(values=found.values / found.values.abs().sum())

    strategy.compact = broken


def keeps_no_bias(strategy: Any) -> None:
    compact = strategy.compact

    def broken(*args: Any) -> Compacted:
        found: Compacted = compact(*args)
        return found._replace(bias=found.bias + 1)

    strategy.compact = broken


def keeps_the_worst(strategy: Any) -> None:
    compact = strategy.compact

    def broken(layer: int, queries: Any, keys: Any, values: Any, kept: int) -> Compacted:
        found: Compacted = compact(layer, queries, keys, values * kept, kept)
        return found

    strategy.compact = broken


@pytest.mark.parametrize(
    ("broken", "caught_by"),
    [
        _Case(plans_by_the_answer, _COMPACTS[0]),
        _Case(plans_parts_of_pages, _COMPACTS[0]),
        _Case(divides_by_what_is_not_there, _COMPACTS[1]),
        _Case(keeps_no_bias, _COMPACTS[2]),
        _Case(keeps_the_worst, _COMPACTS[3]),
    ],
)
def test_one_that_compacts_badly_fails(broken: Callable[[Any], None], caught_by: str) -> None:
    with pytest.raises(AssertionError):
        getattr(_compacting(broken), caught_by)()
