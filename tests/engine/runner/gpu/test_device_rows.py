"""Device rows: follow the host's, and only differences are sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gatewayd_engine.process.messages import SamplingParams
from gatewayd_engine.runner.gpu import device_rows
from gatewayd_engine.runner.gpu.device_rows import DeviceRows
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.sequence import Sequence

NUM, PAGES, SIZE, SCRATCH = 4, 6, 4, 77
CPU = torch.device("cpu")
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.just(5),
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
    top_k=st.sampled_from([0, 1, 50]),
    top_p=st.sampled_from([0.1, 1.0]),
    min_p=st.sampled_from([0.0, 0.2]),
)


def sequence(params: SamplingParams, seed: int = 0) -> Sequence:
    return Sequence(
        0,
        np.array([3, 4], np.int32),
        params,
        salt=b"",
        tenant="",
        priority=1,
        seed=seed,
        limit=9,
        submitted=0.0,
    )


class Followed(RuleBasedStateMachine):
    """Sequences come and go on the host, and now and then the device is told."""

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(device_rows, "upload", self._counted)
        self._uploaded = 0
        self.rows = RunningBatch(NUM, PAGES * SIZE, SIZE)
        self.device = DeviceRows(self.rows, SCRATCH, CPU)
        self.live: dict[int, Sequence] = {}
        self.written: dict[int, set[int]] = {}
        self.taken: set[int] = set()
        self.cells: set[tuple[int, int]] = set()

    def teardown(self) -> None:
        self._patch.undo()

    def _counted(self, array: Any, device: torch.device) -> torch.Tensor:
        self._uploaded += array.size
        return torch.from_numpy(array.copy())

    @rule(params=PARAMS, seed=st.sampled_from([0, 5, 2**63 + 1, 2**64 - 1]))
    def take(self, params: SamplingParams, seed: int) -> None:
        if self.rows.num_free:
            one = sequence(params, seed)
            row = self.rows.add(one, 2)
            self.live[row] = one
            self.written[row] = set()
            self.taken.add(row)

    @rule(
        row=st.integers(0, NUM - 1),
        first=st.integers(0, PAGES - 1),
        pages=st.lists(st.integers(0, 50), max_size=PAGES),
    )
    def set_pages(self, row: int, first: int, pages: list[int]) -> None:
        if row in self.live:
            pages = pages[: PAGES - first]
            self.rows.set_pages(row, first, pages)
            places = range(first, first + len(pages))
            self.written[row].update(places)
            self.cells.update((row, place) for place in places)

    @rule(row=st.integers(0, NUM - 1))
    def give_back(self, row: int) -> None:
        if row in self.live:
            self.rows.remove(self.live.pop(row), 2)

    @rule()
    def follow(self) -> None:
        self._uploaded = 0
        self.device.sync()
        assert self._uploaded == 6 * len(self.taken) + 2 * len(self.cells)
        self.taken.clear()
        self.cells.clear()
        columns = self.device.sampling
        for row in self.live:
            assert columns.temperature[row] == self.rows.temperature[row]
            assert columns.top_p[row] == self.rows.top_p[row]
            assert columns.min_p[row] == self.rows.min_p[row]
            assert columns.top_k[row] == self.rows.top_k[row]
            assert columns.seed[row].item() % 2**64 == self.rows.seed[row]
            for place in self.written[row]:
                assert self.device.block_table[row, place] == self.rows.block_table[row, place]

    @invariant()
    def padding_stays_as_it_is(self) -> None:
        row, columns = self.device.padding, self.device.sampling
        assert row == NUM
        assert (self.device.block_table[row] == SCRATCH).all()
        assert self.device.last_tokens[row] == 0
        numbers = (columns.temperature, columns.top_k, columns.top_p, columns.min_p, columns.seed)
        assert [column[row].item() for column in numbers] == [0, 0, 1, 0, 0]


Followed.TestCase.settings = settings(stateful_step_count=25)
test_the_device_knows_what_the_host_knows = Followed.TestCase


def test_types_are_those_that_kernels_read() -> None:
    rows = DeviceRows(RunningBatch(NUM, PAGES * SIZE, SIZE), SCRATCH, CPU)
    columns = rows.sampling
    assert rows.last_tokens.dtype == rows.block_table.dtype == columns.top_k.dtype == torch.int32
    assert columns.seed.dtype == torch.int64
    assert {columns.temperature.dtype, columns.top_p.dtype, columns.min_p.dtype} == {torch.float32}
    assert rows.block_table.shape == (NUM + 1, PAGES)


def test_nothing_is_sent_where_nothing_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    host = RunningBatch(NUM, PAGES * SIZE, SIZE)
    device = DeviceRows(host, SCRATCH, CPU)
    host.add(sequence(SamplingParams(max_tokens=1)), 2)
    device.sync()
    monkeypatch.setattr(device_rows, "upload", None)
    device.sync()


def test_a_place_that_has_changed_twice_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    host = RunningBatch(NUM, PAGES * SIZE, SIZE)
    device = DeviceRows(host, SCRATCH, CPU)
    sent: list[Any] = []

    def noted(array: Any, device: torch.device) -> torch.Tensor:
        sent.append(array.tolist())
        return torch.from_numpy(array)

    monkeypatch.setattr(device_rows, "upload", noted)
    host.set_pages(1, 0, [9, 8, 7])
    host.set_pages(1, 2, [6, 5])
    device.sync()
    assert sent == [[[PAGES, PAGES + 1, PAGES + 2, PAGES + 3], [9, 8, 6, 5]]]
    assert device.block_table[1].tolist() == [9, 8, 6, 5, SCRATCH, SCRATCH]


def test_tensors_keep_their_addresses() -> None:
    host = RunningBatch(NUM, PAGES * SIZE, SIZE)
    device = DeviceRows(host, SCRATCH, CPU)

    def addresses() -> list[int]:
        columns = device.sampling
        tensors = (columns.temperature, columns.top_k, columns.top_p, columns.min_p, columns.seed)
        return [t.data_ptr() for t in (device.last_tokens, device.block_table, *tensors)]

    before = addresses()
    row = host.add(sequence(SamplingParams(max_tokens=1, temperature=0.5, top_k=3)), 2)
    host.set_pages(row, 0, [1, 2])
    device.sync()
    assert device.block_table[row, :2].tolist() == [1, 2]
    assert addresses() == before
