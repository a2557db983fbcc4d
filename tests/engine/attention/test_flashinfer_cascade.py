"""Cascade attention: shared prefixes attended once for all decode rows, on the stand-in."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gatewayd_engine.model.attention_shape import AttentionShape
from tests.engine.attention.steps import Sequences

SHAPE = AttentionShape(2, 6, 2, 8, 0.3, None, (0, 0))


def sharing(shape: AttentionShape, num_pages: int) -> Sequences:
    """Rows 0 to 4 begin with the same pages; row 4 has nothing else yet."""
    sequences = Sequences(shape, seed=5)
    sequences.fill(0, 4 * num_pages + 6)
    for row in range(1, 5):
        sequences.share(row, 0, num_pages)
        sequences.fill(row, [3, 4, 29, 0][row - 1])
    return sequences


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_merged_parts_are_what_the_whole_is(
    flashinfer: SimpleNamespace, softcap: float | None
) -> None:
    sequences = sharing(replace(SHAPE, softcap=softcap), 10)
    attention = flashinfer.CascadeAttention(
        sequences.shape, sequences.pool, sequences.append, least_saved=160
    )
    for _ in range(5):
        before = len(flashinfer.plans)
        sequences.check(attention, dict.fromkeys([3, 0, 1, 2, 4], 1), shared=10)
        assert len(flashinfer.plans) == before + 2
    sequences.check(attention, {4: 1, 0: 1, 2: 1, 1: 1, 3: 1, 5: 9, 6: 2}, shared=10)
    assert len(flashinfer.plans) == before + 5


@pytest.mark.parametrize(
    ("windows", "shared"), [((0, 0), 9), ((0, 0), 0), ((7, 7), 10), ((0, 7), 10)]
)
def test_lines_that_share_too_little_or_see_too_little_are_attended_alone(
    flashinfer: SimpleNamespace, windows: tuple[int, ...], shared: int
) -> None:
    sequences = sharing(replace(SHAPE, windows=windows), 10)
    attention = flashinfer.CascadeAttention(
        sequences.shape, sequences.pool, sequences.append, least_saved=160
    )
    sequences.check(attention, dict.fromkeys([3, 0, 1, 2, 4], 1), shared=shared)
    assert len(flashinfer.plans) == len(set(windows))


def test_a_line_alone_shares_nothing(flashinfer: SimpleNamespace) -> None:
    sequences = sharing(SHAPE, 10)
    attention = flashinfer.CascadeAttention(sequences.shape, sequences.pool, sequences.append)
    sequences.check(attention, {0: 1, 5: 4}, shared=10)
    assert len(flashinfer.plans) == 2


@pytest.mark.parametrize(("windows", "times"), [((0, 0), 1), ((7, 7), 0)])
def test_what_merges_is_compiled_before_there_is_a_step(
    flashinfer: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    windows: tuple[int, ...],
    times: int,
) -> None:
    merged: list[tuple[Any, ...]] = []
    module = sys.modules["gatewayd_engine.attention.flashinfer.cascade"]
    real = module.merge_state_in_place

    def noted(*states: Any) -> None:
        merged.append(states)
        real(*states)

    monkeypatch.setattr(module, "merge_state_in_place", noted)
    sequences = Sequences(replace(SHAPE, windows=windows))
    flashinfer.CascadeAttention(sequences.shape, sequences.pool, sequences.append)
    assert len(merged) == times
