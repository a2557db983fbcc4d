"""Draft slots on a device: padded rows, trees by ancestors and depths."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.runner.gpu.draft_slots import (
    DraftLinesInput,
    DraftSlotInputs,
    aligned,
    flat_of,
)
from gatewayd_engine.state.step_batch import BatchDrafts

PAGE, SCRATCH, ROWS = 4, 99, 3


def slots() -> Any:
    table = torch.arange((ROWS + 1) * 5, dtype=torch.int32).view(ROWS + 1, 5)
    table[ROWS] = SCRATCH
    last = torch.tensor([70, 71, 72, 73], dtype=torch.int32)
    state = SimpleNamespace(padding=ROWS, last_tokens=last, block_table=table)
    return DraftSlotInputs(state, TorchKernels(), PAGE, SCRATCH, 4, 16)


def test_a_tree_beside_a_line_without_drafts_and_padding() -> None:
    made = slots()
    # Behind the last token two children, and a child of the second.
    drafts = BatchDrafts(
        counts=np.array([3, 0]),
        tokens=np.array([[7, 8, 9, 0, 0], [0, 0, 0, 0, 0]], np.int32),
        parents=np.array([[-1, -1, 1, -1, -1], [-1, -1, -1, -1, -1]], np.int32),
        probs=None,
        source=np.array([-1, -1]),
    )
    ids = np.array([5, 7, 8, 9, -1])
    lines = DraftLinesInput(np.array([1, 0]), np.array([6, 3]), np.array([4, 1]), ids, drafts)
    inputs = made.inputs(3, 4)
    made.upload(lines, 3, 4)
    made.fill(inputs)
    step = inputs.step
    assert inputs.rows.tolist() == [1, 0, ROWS]
    assert inputs.counts.tolist() == [4, 1, 1]
    assert step.page_indptr.tolist() == [0, 3, 4, 5]
    assert step.last_page_len.tolist() == [2, 4, 1]
    assert step.pages[:5].tolist() == [5, 6, 7, 0, SCRATCH]
    assert step.ids.tolist() == [5, 7, 8, 9, 70, 0, 0, 0, 0, 0, 0, 0]
    assert step.positions.tolist() == [6, 7, 7, 8, 3, 0, 0, 0, 0, 0, 0, 0]
    # Each slot of its own, two of them in the next page.
    assert step.write.tolist()[:5] == [26, 27, 28, 29, 3]
    assert (step.write[5:] // PAGE == SCRATCH).all()
    assert inputs.ancestors[:4].tolist() == [0b0001, 0b0011, 0b0101, 0b1101]


def test_a_chain_of_64_slots_sees_all_before() -> None:
    made = slots()
    made = DraftSlotInputs(made._state, TorchKernels(), 64, SCRATCH, 1, 64)
    inputs = made.inputs(1, 64)
    made.upload(
        DraftLinesInput(np.array([0]), np.array([0]), np.array([64]), np.zeros(64, int)), 1, 64
    )
    bits = inputs.ancestors.numpy().view(np.uint64).tolist()
    assert bits == [(1 << slot + 1) - 1 for slot in range(64)]


def test_pages_are_those_that_lines_will_reach() -> None:
    """A line that goes on without being uploaded again has fewer tokens than its pages hold."""
    made = slots()
    inputs = made.inputs(1, 1)
    one = DraftLinesInput(
        np.array([2]), np.array([3]), np.array([1]), np.array([-1]), reach=np.array([11])
    )
    made.upload(one, 1, 1)
    assert inputs.step.page_indptr.tolist() == [0, 3]
    # Two whole pages and this are four tokens.
    assert inputs.step.last_page_len.tolist() == [-4]


def test_sections_begin_at_16_bytes_and_tokens_stand_behind_padding() -> None:
    assert aligned((3, 4, 5)) == [0, 4, 8, 16]
    assert flat_of(np.array([2, 1, 3]), 4).tolist() == [0, 1, 4, 8, 9, 10]
