"""Columns: created, grown and emptied together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

import numpy as np
import pytest
from numpy.typing import NDArray

from gatewayd_engine.state.columns import ColumnSet, column
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch


class _Two(ColumnSet):
    ages = column(np.int8)
    names = column(np.int64, -1)


class _Three(_Two):
    heights = column(np.float32, np.inf)


def test_places_are_empty_at_first() -> None:
    three = _Three(2)
    assert three.ages.dtype == np.int8
    assert three.ages.tolist() == [0, 0]
    assert three.names.tolist() == [-1, -1]
    assert three.heights.tolist() == [np.inf, np.inf]
    assert list(_Two(1).columns()) == ["ages", "names"]


def test_growth_keeps_what_is_there() -> None:
    two = _Two(1)
    two.ages[0] = two.names[0] = 7
    two.grow_columns(3)
    assert two.ages.tolist() == [7, 0, 0]
    assert two.ages.dtype == np.int8
    assert two.names.tolist() == [7, -1, -1]
    before = two.ages
    two.grow_columns(2)
    assert two.ages is before


@pytest.mark.parametrize("places", [1, np.array([1])])
def test_some_places_are_emptied(places: int | NDArray[np.int64]) -> None:
    two = _Two(3)
    two.ages[:] = two.names[:] = 7
    two.clear_columns(places)
    assert two.ages.tolist() == [7, 0, 7]
    assert two.names.tolist() == [7, -1, 7]


def test_each_has_its_own_arrays() -> None:
    one, other = _Two(1), _Two(1)
    one.ages[0] = 7
    assert other.ages[0] == 0


def _lengths(owner: object, names: Iterable[str]) -> dict[str, int]:
    values = {name: getattr(owner, name) for name in names}
    return {name: len(value) for name, value in values.items() if isinstance(value, np.ndarray)}


def test_every_column_of_a_queue_grows() -> None:
    queue = Queue(2, 8, 4, 16, lambda slot: 1)
    names = {field.name for field in fields(queue.view)} - {"running"}
    for length in (2, 4):
        own, shown = _lengths(queue, vars(queue)), _lengths(queue.view, names)
        assert set(own.values()) == {length}, own
        assert set(shown.values()) == {length}, shown
        if length == 2:
            queue._grow()
    assert queue.ids.tolist() == queue.row.tolist() == [-1] * 4


def test_every_array_of_a_batch_has_its_rows() -> None:
    batch = RunningBatch(3, 64, 16)
    lengths = _lengths(batch, vars(batch))
    assert set(lengths.values()) == {3}, lengths
