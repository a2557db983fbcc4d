"""Paged attention in torch: equals the definition and the CPU implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gatewayd_engine.attention.gpu_api import CapturingAttention
from gatewayd_engine.attention.paged import PagedAttention
from gatewayd_engine.attention.reference import ReferenceAttention
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import gather
from tests.engine.attention.steps import Sequences, some_counts


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("windows", [(0, 0), (9, 0), (1, 5)])
def test_steps_give_what_the_definition_gives(
    softcap: float | None, windows: tuple[int, ...]
) -> None:
    sequences = Sequences(AttentionShape(2, 6, 2, 8, 0.3, softcap, windows), seed=1)
    attention = PagedAttention(sequences.shape, sequences.pool, sequences.append)
    for row in range(5):
        sequences.fill(row, [1, 4, 5, 33, 80][row])
    for _ in range(14):
        sequences.check(attention, some_counts(sequences))


@pytest.mark.parametrize("windows", [(8, 0), (5, 40)])
def test_layers_attend_within_chunks(windows: tuple[int, ...]) -> None:
    shape = AttentionShape(2, 6, 2, 8, 0.3, None, windows, chunked=True)
    sequences = Sequences(shape, seed=4)
    attention = PagedAttention(sequences.shape, sequences.pool, sequences.append)
    for row in range(5):
        sequences.fill(row, [1, 7, 8, 39, 80][row])
    for _ in range(14):
        sequences.check(attention, some_counts(sequences))


def test_padding_disturbs_nobody() -> None:
    sequences = Sequences(AttentionShape(1, 2, 1, 8, 0.3, None, (0,)))
    attention = PagedAttention(sequences.shape, sequences.pool, sequences.append)
    sequences.fill(3, 9)
    for _ in range(3):
        sequences.check(attention, {3: 1, 5: 1}, padding=2)


def test_a_step_gives_what_the_reference_gives_on_the_same_pool() -> None:
    shape = AttentionShape(2, 4, 2, 8, 0.3, None, (0, 6))
    sequences = Sequences(shape, seed=2)
    attention = PagedAttention(shape, sequences.pool, sequences.append)
    reference = ReferenceAttention(shape, sequences.pool, 8, 0)
    rows = RunningBatch(8, 240, 4)
    for row, table in enumerate(sequences.tables):
        rows.block_table[row] = table
    starts = np.array([70, 12, 8, 30], np.int32)
    for row, start in enumerate(starts.tolist()):
        sequences.fill(row, start)
    counts = {0: 1, 1: 1, 2: 3, 3: 9}
    who, count = np.arange(4, dtype=np.int32), np.array([*counts.values()], np.int32)
    batch = gather(rows, who, who, who.astype(np.int64), starts, count, starts + count)
    order = {int(row): counts[int(row)] for row in batch.rows}
    inputs = sequences.inputs(order)
    attend = attention.eager(inputs)
    reference.plan(batch)
    for layer in range(2):
        heads = sequences.heads(len(inputs.ids))
        rotated = heads.clone()
        sequences.rotate(rotated, inputs.positions)
        wanted = reference(layer, rotated[:, :4], rotated[:, 4:])
        torch.testing.assert_close(attend(layer, heads), wanted, atol=2e-5, rtol=1e-4)


def test_it_cannot_be_captured() -> None:
    sequences = Sequences(AttentionShape(1, 2, 1, 8, 0.3, None, (0,)))
    attention = PagedAttention(sequences.shape, sequences.pool, sequences.append)
    assert not isinstance(attention, CapturingAttention)
