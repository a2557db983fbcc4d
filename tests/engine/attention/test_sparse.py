"""Sparse attention: equals dense attention restricted to the selected positions."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from gatewayd_engine.attention import dense_contexts
from gatewayd_engine.attention.kv_selection import Selection
from gatewayd_engine.attention.sparse import SelectiveAttention
from gatewayd_engine.kv.codec import Codec
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.sequence import ALL_EXACT
from gatewayd_engine.state.step_batch import BatchDrafts, gather
from gatewayd_kv_int8.config import Int8CodecConfig
from gatewayd_kv_int8.strategy import Int8Codec
from tests.engine.attention.test_reference import MAX_LEN, PAGE, Twin

SHAPE = AttentionShape(3, 6, 2, 8, 0.3, None, (0, 0, 9))
PLAIN = AttentionShape(3, 6, 2, 8, 0.3, None, (0, 0, 0))
WHOLE = 1
"""A layer for which the strategy says that all is attended to."""


class Shown(NamedTuple):
    """What ``observe`` was called with, of one row."""

    weights: torch.Tensor
    places: torch.Tensor | None


class Dice:
    """Selects any places at all, of any number, and writes down what it was shown."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.admitted: list[int] = []
        self.chosen: dict[tuple[int, int], torch.Tensor] = {}
        self.shown: dict[tuple[int, int], Shown] = {}

    def admit(self, row: int) -> None:
        self.admitted.append(row)

    def budgets(self, rows: Any, lengths: Any) -> Any:
        some = [self.rng.choice([0, 1, 3, 8, 50, 10_000]) for _ in rows]
        return np.array([0] * len(rows) if self.rng.random() < 0.3 else some)

    def select(self, layer: int, rows: Any, lengths: Any, budgets: Any) -> torch.Tensor | None:
        if layer == WHOLE:
            return None
        places = torch.full((len(rows), 2, int(budgets.max())), -1)
        for i, (row, length, budget) in enumerate(zip(rows, lengths, budgets, strict=True)):
            for head in range(2):
                count = self.rng.randint(1, int(budget))
                found = self.rng.sample(range(length), count)
                places[i, head, :count] = torch.tensor(found)
            self.chosen[layer, int(row)] = places[i]
        return places

    def observe(self, layer: int, rows: Any, lengths: Any, weights: Any, places: Any) -> None:
        assert weights.shape[:2] == (len(rows), SHAPE.num_heads)
        if places is None:
            assert weights.shape[2] == lengths.max()
        for i, row in enumerate(rows.tolist()):
            assert (layer, row) not in self.shown
            theirs = None if places is None else places[i].clone()
            self.shown[layer, row] = Shown(weights[i].clone(), theirs)


class Chair:
    """A seat for one."""

    def __init__(self, strategy: Any) -> None:
        self.selecting: Any = strategy
        self.faults: list[BaseException] = []

    def fail(self, error: BaseException) -> None:
        self.faults.append(error)
        self.selecting = None


class SparseTwin(Twin):
    """Sequences of which some attend to places that dice have chosen."""

    def __init__(
        self,
        strategy: Any,
        copy_bytes: int,
        codec: Codec | None = None,
        shape: AttentionShape = SHAPE,
    ) -> None:
        super().__init__(shape, copy_bytes, 0, codec)
        self.chair = Chair(strategy)
        self.dice = strategy
        self.columns = RunningBatch(10, MAX_LEN, PAGE)
        selection = Selection(shape, self.chair, self.columns)
        self.attention = SelectiveAttention(shape, self.pool, 10, copy_bytes, selection)
        self.num_sparse = 0

    def step(self, counts: dict[int, int], drafts: dict[int, int] | None = None) -> None:
        """Compute tokens of some rows and compare each layer with the definition.

        Args:
            counts: tokens of each row.
            drafts: of some rows how many come behind those, none of which is kept.
        """
        drafts = drafts or {}
        self.dice.chosen.clear()
        self.dice.shown.clear()
        who = np.array(list(counts), np.int32)
        starts = np.array([self.known[row].shape[1] for row in counts], np.int32)
        count = np.array(list(counts.values()), np.int32)
        ids = np.array([self.ids[row] for row in counts], np.int64)
        chains = {i: [0] * drafts[row] for i, row in enumerate(counts) if row in drafts}
        behind = BatchDrafts.chains(len(counts), chains) if drafts else None
        batch = gather(self.rows, who, who, ids, starts, count, starts + count, behind)
        self.attention.plan(batch)
        total = len(batch.ids)
        heads = self.shape.num_parts * SHAPE.num_kv_heads
        news = torch.randn(SHAPE.num_layers, total, heads, SHAPE.head_dim)
        spans = [
            (int(last) + 1 - int(n), int(last) + 1, int(row))
            for last, n, row in zip(batch.last, batch.counts, batch.rows, strict=True)
        ]
        for first, end, row in spans:
            kept = news[:, first:end]
            if self.codec is not None:
                kept = self.codec.decode(self.codec.encode(kept))
            self.known[row] = torch.cat((self.known[row], kept), 1)
        for layer in range(SHAPE.num_layers):
            query = torch.randn(total, SHAPE.num_heads, SHAPE.head_dim)
            got = self.attention(layer, query, news[layer]).view(total, SHAPE.num_heads, -1)
            for first, end, row in spans:
                self.compare(layer, row, query[first:end], got[first:end])
        for row, dropped in drafts.items():
            self.known[row] = self.known[row][:, :-dropped]

    def compare(self, layer: int, row: int, query: torch.Tensor, got: torch.Tensor) -> None:
        """One row's answer, and what the strategy was shown of it."""
        kv = self.known[row][layer]
        places = self.dice.chosen.get((layer, row))
        if places is None:
            wanted = self.dense(layer, query, row)
            torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-4)
            if (layer, row) in self.dice.shown:
                self.compare_shown(layer, row, query, torch.ones(2, len(kv), dtype=torch.bool))
            return
        self.num_sparse += 1
        sees = torch.zeros(2, len(kv), dtype=torch.bool)
        for head in range(2):
            sees[head, places[head][places[head] >= 0]] = True
        weights = self.weights(query, kv, sees)
        values = kv[:, -SHAPE.num_kv_heads :].repeat_interleave(3, 1)
        wanted = torch.einsum("hk,khd->hd", weights, values)[None]
        torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-4)
        self.compare_shown(layer, row, query, sees)

    def compare_shown(self, layer: int, row: int, query: torch.Tensor, sees: torch.Tensor) -> None:
        if self.chair.faults:
            return  # nothing is shown any more
        kv, shown = self.known[row][layer], self.dice.shown[layer, row]
        weights, found = self.weights(query, kv, sees), torch.zeros(SHAPE.num_heads, len(kv))
        if shown.places is None:
            found = shown.weights[:, : len(kv)]
            assert not shown.weights[:, len(kv) :].any()
        else:
            places = shown.places.repeat_interleave(3, 0)
            assert not shown.weights[places < 0].any()
            found.scatter_add_(1, places.clamp_min(0), shown.weights)
        torch.testing.assert_close(found, weights, atol=2e-5, rtol=1e-4)

    def weights(self, query: torch.Tensor, kv: torch.Tensor, sees: torch.Tensor) -> torch.Tensor:
        """By the definition, ``[num_heads, context]``."""
        keys = kv[:, : SHAPE.num_kv_heads].repeat_interleave(3, 1)
        scores = torch.einsum("hd,khd->hk", query[0], keys) * SHAPE.scale
        return torch.softmax(scores.masked_fill(~sees.repeat_interleave(3, 0), -torch.inf), -1)


def int8() -> Codec:
    return Codec(Int8Codec(Int8CodecConfig()), 10, SHAPE.head_dim, torch.float32)


@pytest.mark.parametrize("make_codec", [None, int8])
@pytest.mark.parametrize("copy_bytes", [0, 1 << 26])
def test_it_is_dense_attention_restricted_to_what_is_selected(
    copy_bytes: int, make_codec: Callable[[], Codec] | None
) -> None:
    twin = SparseTwin(Dice(), copy_bytes, None if make_codec is None else make_codec())
    twin.step({0: 90, 1: 30, 2: 200})
    rng = random.Random(4)
    for step in range(24):
        counts = dict.fromkeys(rng.sample(range(3), rng.randint(1, 3)), 1)
        if step % 6 == 5:
            counts |= {3 + step % 4: 17}
        twin.step(counts)
    assert twin.num_sparse > 20
    assert not twin.chair.faults


@pytest.mark.parametrize("values_are_keys", [False, True])
def test_what_sequences_share_is_selected_from_too(
    values_are_keys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_contexts, "_LEAST_GAIN", 1 << 12)
    shape = replace(PLAIN, values_are_keys=values_are_keys)
    twin = SparseTwin(Dice(2), 1 << 26, shape=shape)
    twin.step({0: 120})
    for row in (1, 2):
        twin.inherit(row, 0, 25)
        twin.step({row: 9})
    for step in range(12):
        twin.step({0: 1, 1: 1, 2: 1}, {step % 3: 2} if step % 4 == 3 else None)
    assert any(group.prefix and group.width == 3 for group in twin.attention._groups)
    assert twin.num_sparse > 10


BOTH = {0: 1, 1: 1}


def test_layers_may_attend_to_different_numbers_of_places() -> None:
    dice = Dice(3)
    dice.budgets = lambda rows, lengths: np.full(len(rows), 9)  # type: ignore[method-assign]

    def select(layer: int, rows: Any, lengths: Any, budgets: Any) -> torch.Tensor | None:
        places = Dice.select(dice, layer, rows, lengths, budgets)
        if places is None:
            return None
        for row in rows.tolist():
            dice.chosen[layer, row] = dice.chosen[layer, row][:, : 3 + layer]
        return places[..., : 3 + layer]

    dice.select = select  # type: ignore[method-assign]
    twin = SparseTwin(dice, 1 << 26, shape=PLAIN)
    twin.step({0: 50, 1: 60})
    for _ in range(4):
        twin.step(BOTH)
    assert twin.num_sparse == 2 * 2 * 4
    assert not twin.chair.faults


class PaddedInFront(Dice):
    """Selects places behind their padding."""

    def select(self, *args: Any) -> torch.Tensor | None:
        places = super().select(*args)
        return None if places is None else places.flip(-1)


class Overwriting(Dice):
    """Writes to what it was shown."""

    def observe(self, layer: int, rows: Any, lengths: Any, weights: Any, places: Any) -> None:
        super().observe(layer, rows, lengths, weights, places)
        rows[:], lengths[:] = 0, 1


@pytest.mark.parametrize("make", [PaddedInFront, Overwriting])
def test_padding_may_be_anywhere_and_arrays_are_the_strategys_own(make: type[Dice]) -> None:
    twin = SparseTwin(make(), 1 << 26, shape=PLAIN)
    twin.step({0: 50, 1: 60})
    for _ in range(8):
        twin.step(BOTH)
    assert twin.num_sparse > 10
    assert not twin.chair.faults


@pytest.mark.parametrize("copy_bytes", [0, 1 << 26])
def test_what_lines_beside_drafts_attend_to_is_shown(copy_bytes: int) -> None:
    twin = SparseTwin(Dice(6), copy_bytes)
    twin.step({0: 50, 1: 60, 2: 55})
    rng = random.Random(5)
    for _ in range(12):
        drafting = rng.randrange(3)
        twin.step({0: 1, 1: 1, 2: 1}, {drafting: rng.randint(1, 3)})
        assert any(group.width > 1 for group in twin.attention._groups)
        shown = {(layer, row) for layer in range(2) for row in range(3) if row != drafting}
        assert set(twin.dice.shown) == shown
    assert twin.num_sparse > 5
    assert not twin.chair.faults


def test_layers_behind_a_fault_attend_to_all() -> None:
    dice = Dice()
    dice.budgets = lambda rows, lengths: np.full(len(rows), 4)  # type: ignore[method-assign]
    twin = SparseTwin(dice, 1 << 26, shape=PLAIN)
    twin.step({0: 50, 1: 60})

    def observe(layer: int, rows: Any, lengths: Any, weights: Any, places: Any) -> None:
        # They were chosen before, and do not count any more.
        for key in [key for key in dice.chosen if key[0] > 0]:
            del dice.chosen[key]
        raise ArithmeticError

    dice.observe = observe  # type: ignore[method-assign]
    twin.step(BOTH)
    assert len(twin.chair.faults) == 1
    assert twin.num_sparse == 2


def test_a_row_is_announced_when_its_sequence_is_another_or_comes_back() -> None:
    dice = Dice()
    twin = SparseTwin(dice, 1 << 26)
    twin.step({0: 20, 1: 20})
    twin.step({0: 1, 1: 1})
    twin.step({0: 1, 1: 1})
    assert sorted(dice.admitted) == [0, 1]
    twin.restart(0)
    twin.step({0: 20})
    twin.step({0: 1, 1: 1})
    assert dice.admitted[2:] == [0]
    twin.columns.followed[1] = -1  # preempted, and back in its row
    twin.step({0: 1, 1: 1})
    assert dice.admitted[2:] == [0, 1]


def test_a_prompts_chunk_of_one_token_is_none_that_decodes() -> None:
    dice = Dice()
    twin = SparseTwin(dice, 1 << 26)
    twin.columns.decodes_from[:2] = 23, 21
    twin.step({0: 20, 1: 20})
    for admitted in ([], [1], [1], [1, 0]):
        twin.step({0: 1, 1: 1})
        assert dice.admitted == admitted
    assert int(twin.columns.exact_until[:1].min()) >= 23


def test_what_is_computed_from_few_places_is_told() -> None:
    dice = Dice()
    dice.budgets = lambda rows, lengths: np.where(rows == 1, 3, 0)  # type: ignore[method-assign]
    twin = SparseTwin(dice, 1 << 26)
    twin.step({0: 20, 1: 20})
    twin.step({0: 1, 1: 1})
    twin.step({0: 1, 1: 1})
    assert twin.columns.exact_until[:3].tolist() == [ALL_EXACT, 20, ALL_EXACT]


def _budgets_of_another_shape(dice: Any) -> None:
    dice.budgets = lambda rows, lengths: np.ones(len(rows) + 1, np.int64)


def _budgets_below_nothing(dice: Any) -> None:
    dice.budgets = lambda rows, lengths: np.full(len(rows), -1)


def _raises(dice: Any) -> None:
    def select(*args: Any) -> torch.Tensor:
        raise RuntimeError("no")

    dice.select = select


def _wants_to_end(dice: Any) -> None:
    def observe(*args: Any) -> None:
        raise SystemExit

    dice.observe = observe


def _selects(change: Callable[[torch.Tensor], Any]) -> Callable[[Any], None]:
    def broken(dice: Any) -> None:
        dice.budgets = lambda rows, lengths: np.full(len(rows), 4)
        dice.select = lambda layer, rows, lengths, budgets: change(
            torch.arange(4).repeat(len(rows), 2, 1)
        )

    return broken


@pytest.mark.parametrize(
    "broken",
    [
        _budgets_of_another_shape,
        _budgets_below_nothing,
        _raises,
        _wants_to_end,
        _selects(lambda places: places + 1_000),
        _selects(lambda places: places - 2),
        _selects(lambda places: places.int()),
        _selects(lambda places: places[:, :1]),
        _selects(lambda places: places.repeat(1, 1, 2)),
        _selects(lambda places: places[..., :0]),
        _selects(lambda places: places * 0 - 1),
        _selects(lambda places: places // 2),
        _selects(lambda places: places.tolist()),
    ],
)
def test_a_fault_ends_selection_and_the_step_attends_to_all(
    broken: Callable[[Any], None],
) -> None:
    dice = Dice()
    dice.budgets = lambda rows, lengths: np.full(len(rows), 4)  # type: ignore[method-assign]
    twin = SparseTwin(dice, 1 << 26)
    twin.step({0: 20, 1: 30})
    broken(dice)
    twin.step({0: 1, 1: 1})
    assert len(twin.chair.faults) == 1
    assert bool(twin.num_sparse) == (broken is _wants_to_end)
    twin.step({0: 1, 1: 1})
    assert len(twin.chair.faults) == 1
