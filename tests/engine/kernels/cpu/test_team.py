"""Thread team: jobs of phases on any number of threads, and the end of the threads."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.kernels.cpu import team as team_module
from gatewayd_engine.kernels.cpu import team_code
from gatewayd_engine.kernels.cpu.select import thread_team
from gatewayd_engine.kernels.cpu.step_layout import LAYER_SIZE, LayerField, MatrixField, StepShape
from gatewayd_engine.kernels.cpu.team import MOST_PHASES, ThreadTeam
from gatewayd_engine.kernels.cpu.team_layout import MOST_ARGUMENTS, RING, Team
from gatewayd_engine.kernels.llvm.builder import I64, KernelFunction, Pointer, Value, new_module
from gatewayd_engine.kernels.llvm.compiler import to_object
from gatewayd_engine.kernels.llvm.library import Library
from gatewayd_engine.model.fused.build import describe
from gatewayd_engine.model.fused.data import PagedRows
from gatewayd_engine.model.fused.step import FusedStep
from gatewayd_engine.model.linears.panel_linear import PanelLinear, panel_linear
from tests.engine.kernels.cpu.emitting import Emitted, this_processor
from tests.engine.kernels.forked import Child

WIDTH = 13
PHASES = 4


@cache
def mixing() -> Emitted:
    """A job whose phases each read all results of the one before.

    Its arguments are two buffers that alternate, their size, the number of phases, and the numbers
    of a part.
    """

    def emit(f: KernelFunction, given: Pointer, thread: Value, threads: Value) -> None:
        buffers, count = [given.pointer(i, I64) for i in (0, 1)], given[2]
        phases = team_code.Phases(f, this_processor(), given)
        with f.loop(0, given[3], 2):
            for source, target in (buffers, buffers[::-1]):
                with phases.parts(count, given[4]) as (first, end), f.loop(first, end) as i:
                    target[i] = target[i] + source[(i + 1) % count] * 3 + source[count - 1 - i]

    return Emitted([[I64], I64, I64], emit)


@cache
def holding() -> Emitted:
    """A job that ends at once for its caller; the others leave it when a flag is set."""

    def emit(f: KernelFunction, given: Pointer, thread: Value, threads: Value) -> None:
        flag = given.pointer(0, I64)
        with f.when(thread > 0), f.repeat_while() as loop:
            loop.stop_unless(team_code._load(f, flag).equals(0))

    return Emitted([[I64], I64, I64], emit)


class Mixed:
    """A state that jobs change, and how it should have changed."""

    def __init__(self) -> None:
        self.state = np.arange(2 * WIDTH).reshape(2, WIDTH)
        self.expected = self.state.copy()
        self.given = np.zeros(5, np.int64)
        self.given[:2] = self.state[0].ctypes.data, self.state[1].ctypes.data
        self.given[2] = WIDTH

    def run(self, team: ThreadTeam, phases: int = PHASES, part: int = 2) -> None:
        self.given[3:] = phases, part
        team.run(mixing().address, self.given, phases)

    def start(self, team: ThreadTeam, live: object = (), owners: object = ()) -> None:
        self.given[3:] = PHASES, 2
        team.start(mixing().address, self.given, PHASES, live, owners)

    def advance(self, phases: int) -> None:
        """Compute phases by the definition."""
        for phase in range(phases):
            source, target = self.expected[phase % 2], self.expected[1 - phase % 2]
            target += np.roll(source, -1) * 3 + source[::-1]

    @property
    def is_right(self) -> bool:
        return bool((self.state == self.expected).all())


def own_threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def new_team(size: int) -> ThreadTeam:
    return ThreadTeam(this_processor(), size)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_thousands_of_short_jobs_are_right(threads: int) -> None:
    team, mixed, jobs = new_team(threads), Mixed(), 3000
    for _ in range(jobs):
        mixed.run(team)
    mixed.advance(jobs * PHASES)
    assert mixed.is_right


@pytest.mark.parametrize("part", [1, 5, WIDTH, 100])
def test_parts_of_any_size_are_each_computed_once(team: ThreadTeam, part: int) -> None:
    mixed = Mixed()
    for _ in range(200):
        mixed.run(team, part=part)
    mixed.advance(200 * PHASES)
    assert mixed.is_right


def test_jobs_alternate_between_numbers_of_threads() -> None:
    team, mixed = new_team(3), Mixed()
    for job in range(1500):
        team.use((1, 2, 3, 2, 1, 1, 3)[job % 7])
        mixed.run(team)
    mixed.advance(1500 * PHASES)
    assert mixed.is_right


def test_no_more_threads_are_used_than_there_are() -> None:
    team = new_team(2)
    team.use(5)
    assert team.threads == 2


def test_the_longest_job_is_right_and_longer_ones_are_refused(team: ThreadTeam) -> None:
    mixed = Mixed()
    mixed.run(team, MOST_PHASES)
    mixed.advance(MOST_PHASES)
    assert mixed.is_right
    with pytest.raises(ValueError, match=f"{MOST_PHASES + 2} phases is too large"):
        mixed.run(team, MOST_PHASES + 2)
    with pytest.raises(ValueError, match=f"{MOST_ARGUMENTS + 1} arguments"):
        team.run(mixing().address, np.zeros(MOST_ARGUMENTS + 1, np.int64), 1)
    mixed.run(team)
    mixed.advance(PHASES)
    assert mixed.is_right


def test_threads_that_sleep_are_woken_by_a_job() -> None:
    team, mixed = new_team(3), Mixed()
    for _ in range(5):
        deadline = time.monotonic() + 30
        while team._memory[Team.SLEEPING] < 2:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        mixed.run(team)
    mixed.advance(5 * PHASES)
    assert mixed.is_right


def test_a_thread_that_is_behind_holds_up_only_the_job_that_needs_its_slot() -> None:
    team, mixed, flag = new_team(2), Mixed(), np.zeros(1, np.int64)
    team.run(holding().address, np.array([flag.ctypes.data]), 0)
    for _ in range(RING - 1):
        mixed.run(team)
    last = threading.Thread(target=mixed.run, args=(team,), daemon=True)
    last.start()
    last.join(0.02)
    assert last.is_alive()
    flag[0] = 1
    last.join(30)
    assert not last.is_alive()
    mixed.advance(RING * PHASES)
    assert mixed.is_right


def test_threads_on_one_processor_do_not_wait_for_ever() -> None:
    def check() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        team, mixed = new_team(4), Mixed()
        for _ in range(300):
            mixed.run(team)
        mixed.advance(300 * PHASES)
        assert mixed.is_right

    mixing()
    assert Child(check).succeeded()


def test_a_forked_child_has_a_team_of_its_own() -> None:
    inherited = thread_team(2)
    if inherited is None:
        pytest.skip("no compiled kernels for this processor")
    mixed = Mixed()
    mixed.run(inherited)

    def check() -> None:
        team = thread_team(2)
        assert team is not None
        assert team is not inherited
        for _ in range(100):
            mixed.run(team)
        mixed.advance(101 * PHASES)
        assert mixed.is_right
        assert len(own_threads()) == 2

    assert Child(check).succeeded()
    mixed.run(inherited)
    mixed.advance(2 * PHASES)
    assert mixed.is_right


def test_a_team_that_is_collected_stops_its_threads() -> None:
    before = own_threads()
    team, mixed = new_team(4), Mixed()
    mixed.run(team)
    started = own_threads() - before
    assert len(started) == 3
    del team
    gc.collect()
    deadline = time.monotonic() + 30
    while started & own_threads():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def short_generations(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let the numbers of jobs start again after few of them."""
    monkeypatch.setattr(team_module, "_team_code", lambda _: _short_code())
    return _SHORT


_SHORT = 8


@cache
def _short_code() -> Library:
    processor = this_processor()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team_code, "_MOST_GENERATION", _SHORT)
        module = new_module("team")
        team_code.add_team(module, processor)
    return Library(to_object(module, processor))


def test_numbers_of_jobs_start_again(short_generations: int) -> None:
    team, mixed = new_team(3), Mixed()
    seen = set()
    for job in range(1000):
        team.use(1 if job % 5 == 0 else 3)
        mixed.run(team)
        seen.add(int(team._memory[Team.GENERATION]))
    mixed.advance(1000 * PHASES)
    assert mixed.is_right
    # The first job is of the caller's thread alone, and has no number.
    assert seen == set(range(short_generations + 1))


def test_numbers_of_jobs_stay_in_the_order_of_slots() -> None:
    assert team_code._MOST_GENERATION % RING == 0
    assert team_code._MOST_GENERATION < 1 << 31


def test_a_started_job_is_computed_while_its_caller_does_something_else() -> None:
    team, mixed = new_team(2), Mixed()
    mixed.start(team)
    mixed.advance(PHASES)
    deadline = time.monotonic() + 30
    while not mixed.is_right:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    team.join()
    team.join()
    assert mixed.is_right


@pytest.mark.parametrize("threads", [1, 3])
def test_a_started_job_is_complete_after_it_is_joined(threads: int) -> None:
    team, mixed = new_team(threads), Mixed()
    for _ in range(500):
        mixed.start(team)
        team.join()
        mixed.advance(PHASES)
        assert mixed.is_right


@pytest.mark.parametrize("threads", [1, 3])
def test_a_started_job_is_completed_by_the_next_one(threads: int) -> None:
    team, first, second = new_team(threads), Mixed(), Mixed()
    for _ in range(500):
        first.start(team)
        second.start(team)
        first.advance(PHASES)
        second.advance(PHASES)
        assert first.is_right
    team.join()
    assert second.is_right


def test_what_a_job_uses_is_referenced_as_long_as_it_may_be_read() -> None:
    team, mixed = new_team(2), Mixed()

    def own(live: object, owners: object) -> None:
        mixed.start(team, live=live, owners=owners)

    live, owned = np.zeros(1), np.zeros(1)
    refs = weakref.ref(live), weakref.ref(owned)
    own(live, owned)
    del live, owned
    assert refs[0]() is not None
    team.join()
    assert refs[0]() is None
    # Jobs of the caller's thread alone push no other job out of the ring.
    team.use(1)
    for _ in range(RING + 1):
        mixed.run(team)
    assert refs[1]() is not None
    team.use(2)
    for _ in range(RING - 1):
        mixed.run(team)
        assert refs[1]() is not None
    mixed.run(team)
    assert refs[1]() is None


def dropped_step(team: ThreadTeam) -> None:
    """Compute a step of a small model, drop all of it, and write over its memory."""
    lanes, layers, hidden = team.processor.lanes, 6, 64
    shape = StepShape(
        num_layers=layers,
        hidden=hidden,
        num_heads=2,
        num_kv_heads=1,
        head_dim=32,
        intermediate=64,
        rotary_dim=32,
        norm_eps=1e-6,
        scale=1.0,
        softcap=None,
        activation="silu",
        qk_norm=None,
        pre_norms=True,
        post_norms=False,
        page_size=16,
        vocab=64,
        logit_softcap=None,
    )
    assert shape.fits(lanes)

    def linear(outputs: int, activation: str | None = None) -> PanelLinear:
        made = panel_linear(team, torch.zeros(outputs, hidden), None, activation)
        assert made is not None
        return made

    head, norm = linear(64), torch.ones(hidden)
    products = {
        LayerField.QKV: linear(shape.qkv),
        LayerField.OUT: linear(hidden),
        LayerField.GATE_UP: linear(128, "silu"),
        LayerField.DOWN: linear(hidden),
    }
    blocks = np.zeros((layers, LAYER_SIZE), np.int64)
    table = torch.ones(64, 16, 2)
    for block in blocks:
        block[LayerField.ROPE], block[LayerField.ROPE_STRIDE] = table.data_ptr(), table.stride(0)
        for at, product in products.items():
            describe(product, block[at:])
        block[LayerField.NORM_ATTENTION] = block[LayerField.NORM_MLP] = norm.data_ptr()
    decoder: Any = None
    zeros = np.zeros(1, np.int64)
    pool = torch.zeros(2, layers, 2, 16, 1, 32)
    rows = PagedRows(zeros, zeros, zeros, np.zeros((1, 1), np.int64), pool)
    of_head = np.zeros(len(MatrixField), np.int64)
    describe(head, of_head)
    step = FusedStep(decoder, shape, blocks, norm, of_head, team)
    outputs = step.start(torch.ones(1, hidden), rows, zeros)
    step.join()
    assert not outputs.logits.any()
    del step, outputs, blocks, block
    for _ in range(3):
        np.full(layers * LAYER_SIZE, 1 << 40)


def test_a_step_may_be_dropped_while_other_threads_are_behind() -> None:
    holding()

    def check() -> None:
        team, flags = new_team(4), []
        for _ in range(10):
            flag = np.zeros(1, np.int64)
            flags.append(flag)
            team.run(holding().address, np.array([flag.ctypes.data]), 0)
            dropped_step(team)
            flag[0] = 1

    assert Child(check).succeeded()
