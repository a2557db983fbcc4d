"""Input gather: a step's device inputs equal the batch, row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_engine.attention.step_inputs import HostPlan, StepInputs
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.runner.gpu.device_rows import DeviceRows
from gatewayd_engine.runner.gpu.input_gather import InputBuffers
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import StepBatch, gather

ROWS, SIZE, MAX_LEN, MAX_TOKENS, SCRATCH = 6, 4, 40, 64, 500


class Step:
    """Rows with tokens and pages of their own, and what a batch of them becomes."""

    def __init__(self, lines: dict[int, tuple[int, int]], unknown: set[int] | None = None) -> None:
        self.host = RunningBatch(ROWS, MAX_LEN, SIZE)
        rng = np.random.default_rng(len(lines))
        self.host.tokens[:] = rng.integers(0, 300, self.host.tokens.shape)
        self.device = DeviceRows(self.host, SCRATCH, torch.device("cpu"))
        table = rng.permutation(ROWS * MAX_LEN // SIZE).reshape(ROWS, -1)
        for row in range(ROWS):
            self.host.set_pages(row, 0, table[row].tolist())
        self.device.sync()
        self.device.last_tokens[:ROWS] = 1000 + torch.arange(ROWS, dtype=torch.int32)
        self.batch = self.gathered(lines, unknown)
        self.input_buffers = InputBuffers(self.device, TorchKernels(), SIZE, ROWS, MAX_TOKENS)
        # What an earlier step has left behind.
        for tensor in (
            self.input_buffers._header,
            self.input_buffers._pages,
            self.input_buffers._ids,
        ):
            tensor.fill_(-9)

    def gathered(self, lines: dict[int, tuple[int, int]], unknown: set[int] | None) -> StepBatch:
        """A batch of rows, each with where it starts and how much it computes."""
        rows = np.array(list(lines), np.int32)
        starts, counts = (
            np.array(column, np.int32) for column in zip(*lines.values(), strict=True)
        )
        waits = np.isin(rows, list(unknown or ())).astype(np.int32)
        return gather(
            self.host,
            slots=rows,
            row=rows,
            sequences=rows.astype(np.int64),
            starts=starts,
            counts=counts,
            num_tokens=starts + counts,
            placeholders=None if unknown is None else waits,
        )

    def made(self, lines: int, max_tokens: int | None = None) -> tuple[HostPlan, StepInputs]:
        """Padded to so many lines, as the runner does it."""
        host = self.input_buffers.upload(self.batch, lines)
        inputs = self.input_buffers.inputs(host, len(self.batch.ids) + lines - len(self.batch))
        self.input_buffers.fill(inputs, max_tokens or int(self.batch.counts.max()))
        return host, inputs


def check(step: Step, lines: int, unknown: set[int]) -> None:
    """Compare with a walk over lines and their tokens."""
    batch = step.batch
    host, inputs = step.made(lines)
    ids, positions, write, pages, query, indptr, last = [], [], [], [], [0], [0], []
    for row, start, count in zip(
        batch.rows.tolist(), batch.starts.tolist(), batch.counts.tolist(), strict=True
    ):
        mine = step.host.block_table[row].tolist()
        for position in range(start, start + count):
            is_known = not (row in unknown and position == start + count - 1)
            ids.append(int(step.host.tokens[row, position]) if is_known else 1000 + row)
            positions.append(position)
            write.append(mine[position // SIZE] * SIZE + position % SIZE)
        num_pages = (start + count - 1) // SIZE + 1
        pages += mine[:num_pages]
        query.append(len(ids))
        indptr.append(len(pages))
        last.append((start + count - 1) % SIZE + 1)
    for _ in range(lines - len(batch)):
        ids.append(0)
        positions.append(0)
        write.append(SCRATCH * SIZE)
        pages.append(SCRATCH)
        query.append(len(ids))
        indptr.append(len(pages))
        last.append(1)
    assert inputs.ids.tolist() == ids
    assert inputs.positions.tolist() == positions
    assert inputs.write.tolist() == write
    assert inputs.pages[: len(pages)].tolist() == pages
    assert host.num_decode == sum(batch.counts == 1) + lines - len(batch)
    assert host.num_lines == lines
    for planned, sent, wanted in (
        (host.query_indptr, step.input_buffers._query_indptr[: lines + 1], query),
        (host.page_indptr, inputs.page_indptr, indptr),
        (host.last_page_len, inputs.last_page_len, last),
    ):
        assert planned.dtype == sent.dtype == torch.int32
        assert planned.tolist() == sent.tolist() == wanted
    padded = [step.device.padding] * (lines - len(batch))
    assert step.input_buffers.rows[:lines].tolist() == batch.rows.tolist() + padded
    following = (batch.starts + batch.counts).tolist() + [0] * len(padded)
    assert step.input_buffers.next_positions[:lines].tolist() == following


ROW_LISTS = st.lists(st.integers(0, ROWS - 1), min_size=1, unique=True)


@given(rows=ROW_LISTS, data=st.data())
def test_where_all_decode_the_rest_is_padding(rows: list[int], data: st.DataObject) -> None:
    starts = data.draw(
        st.lists(st.integers(0, MAX_LEN - 1), min_size=len(rows), max_size=len(rows))
    )
    unknown = data.draw(st.sets(st.sampled_from(rows)))
    step = Step({row: (start, 1) for row, start in zip(rows, starts, strict=True)}, unknown)
    check(step, data.draw(st.integers(len(rows), ROWS)), unknown)


@given(rows=ROW_LISTS, data=st.data())
def test_prompts_among_those_that_decode(rows: list[int], data: st.DataObject) -> None:
    lines, budget = {}, MAX_TOKENS - len(rows)
    for row in rows:
        count = data.draw(st.just(1) | st.integers(1, min(MAX_LEN, budget + 1)))
        lines[row] = (data.draw(st.integers(0, MAX_LEN - count)), count)
        budget -= count - 1
    decoding = [row for row, (_, count) in lines.items() if count == 1]
    unknown = data.draw(st.sets(st.sampled_from(decoding))) if decoding else set()
    check(Step(lines, unknown), len(rows), unknown)


def test_the_batch_before_leaves_nothing_behind() -> None:
    step = Step({0: (0, 30), 1: (7, 1), 2: (39, 1)})
    check(step, 3, set())
    step.batch = step.gathered({3: (15, 1), 4: (16, 1)}, None)
    check(step, 5, set())
    step.batch = step.gathered({5: (0, 2)}, None)
    check(step, 1, set())


def test_a_plan_is_not_written_over_by_the_next() -> None:
    step = Step({0: (0, 30), 1: (7, 1)})
    host, _ = step.made(2)
    assert host.longest == 30
    before = [t.tolist() for t in (host.query_indptr, host.page_indptr, host.last_page_len)]
    step.batch = step.gathered({2: (3, 1)}, None)
    step.made(4)
    assert before == [t.tolist() for t in (host.query_indptr, host.page_indptr, host.last_page_len)]


def test_a_step_is_one_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step({0: (0, 30), 1: (7, 1)})
    sent: list[int] = []
    copy = torch.Tensor.copy_

    def noted(target: torch.Tensor, source: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        sent.append(source.numel())
        return copy(target, source, *rest, **more)

    monkeypatch.setattr(torch.Tensor, "copy_", noted)
    step.input_buffers.upload(step.batch, 2)
    assert sent == [6 * ROWS + 3 + 31]


def test_cleared_every_line_is_padding() -> None:
    step = Step({0: (0, 30), 1: (7, 1)})
    step.made(2)
    step.input_buffers.clear()
    for lines in (1, ROWS):
        host = step.input_buffers.scratch(lines)
        inputs = step.input_buffers.inputs(host, lines)
        step.input_buffers.fill(inputs, 1)
        assert inputs.ids.tolist() == inputs.positions.tolist() == [0] * lines
        assert inputs.write.tolist() == [SCRATCH * SIZE] * lines
        assert inputs.pages[:lines].tolist() == [SCRATCH] * lines
        assert inputs.page_indptr.tolist() == host.page_indptr.tolist() == [*range(lines + 1)]
        assert inputs.last_page_len.tolist() == host.last_page_len.tolist() == [1] * lines
        assert host.query_indptr.tolist() == [*range(lines + 1)]
        assert step.input_buffers.rows[:lines].tolist() == [ROWS] * lines
        assert step.input_buffers.next_positions[:lines].tolist() == [0] * lines


def test_a_token_that_is_not_known_is_what_the_row_has_chosen_last() -> None:
    step = Step({2: (8, 1), 3: (6, 1)}, unknown={3})
    step.batch = replace(step.batch, ids=np.array([42, 43]))
    _, inputs = step.made(4)
    assert inputs.ids.tolist() == [42, 1003, 0, 0]
