"""Launch tuning of captured steps: chosen at the start, once per machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.linears.norm_gate_fusion import Fusion
from gatewayd_engine.runner import backend
from gatewayd_engine.runner.backend import DeviceBackend
from gatewayd_engine.runner.gpu.tune_launches import choose_fusion, choose_launches
from gatewayd_engine.tuning import matmul_candidates
from gatewayd_engine.tuning.matmul_candidates import Candidates, CublasLt, TinyGemm
from gatewayd_engine.tuning.table import DeviceLost, TunedMachine, TuningTable
from gatewayd_engine.tuning.tuner import Tuning
from tests.engine.core.prompts import PROMPTS
from tests.engine.runner.gpu import conftest
from tests.engine.tuning.fake_matmul import Modules, Recording

pytestmark = [
    pytest.mark.usefixtures("small_model"),
    pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True),
]
MACHINE = TunedMachine("a chip", "9.0", {})
CPU = torch.device("cpu")
Make = Callable[..., Any]


def families(modules: Modules) -> list[Candidates]:
    """What competes with torch."""
    return [CublasLt(modules, CPU), TinyGemm(modules)]


def test_an_engine_computes_the_same_with_the_products_that_were_chosen(
    make_device_engine: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def answers(engine: Any) -> list[list[int]]:
        ids = [engine.submit(p[:7], max_tokens=5, ignore_eos=True)[0] for p in PROMPTS[:3]]
        done = engine.run()
        return [done[i].tokens for i in ids]

    fields: dict[str, Any] = {"dtype": "bfloat16", "max_running": 4, "max_batch_tokens": 16}
    plain = make_device_engine(**fields)
    assert plain.info.tuning_file == ""
    expected = answers(plain)
    monkeypatch.setattr(matmul_candidates, "_handle", lambda: 7)
    for start in range(2):
        modules = Modules()
        clock, table = Recording(modules, cublaslt_1=5.0), TuningTable(MACHINE, tmp_path)
        tuning = Tuning(table, clock, partial(families, modules))
        with monkeypatch.context() as patch:
            patch.setattr(conftest, "DeviceBackend", partial(DeviceBackend, tuning=tuning))
            patch.setattr(TorchKernels, "can_launch_early", True)
            engine = make_device_engine(**fields)
        assert (table.measured == 0) == (start == 1)
        assert bool(clock.calls) == (start == 0)
        assert engine.info.tuning_file == str(table.path)
        assert {entry.op for entry in table.entries} == {"matmul", "launches", "norms and gates"}
        modules.launched.clear()
        assert answers(engine) == expected
        # Three sequences decode as four lines.
        assert ("cublaslt 1", 4) in modules.launched


def test_an_engine_starts_where_nothing_can_be_chosen(
    make_device_engine: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*_: Any, **__: Any) -> Any:
        raise TypeError("another version")

    fields: dict[str, Any] = {"dtype": "bfloat16", "max_running": 4, "max_batch_tokens": 16}
    tuning = Tuning(TuningTable(MACHINE), breaks, breaks)
    monkeypatch.setattr(conftest, "DeviceBackend", partial(DeviceBackend, tuning=tuning))
    for name in ("choose_launches", "choose_fusion"):
        monkeypatch.setattr(backend, name, breaks)
    engine = make_device_engine(**fields)
    for consequence in (
        "autotuning of matmuls failed; torch's are used",
        "autotuning of kernel launches failed; the defaults are used",
        "autotuning of fused norms and gates failed; the defaults are used",
    ):
        assert consequence in caplog.text
    (made,) = engine.submit(PROMPTS[0][:7], max_tokens=5, ignore_eos=True)
    assert len(engine.run()[made].tokens) == 5


def test_an_engine_does_not_start_on_a_lost_device(
    make_device_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_lost() -> Any:
        raise DeviceLost("an illegal memory access")

    tuning = Tuning(TuningTable(MACHINE), lambda calls: 0.0, is_lost)
    monkeypatch.setattr(conftest, "DeviceBackend", partial(DeviceBackend, tuning=tuning))
    with pytest.raises(DeviceLost, match="illegal memory access"):
        make_device_engine(dtype="bfloat16", max_running=4, max_batch_tokens=16)


class Deciding:
    """A clock by whether launches are early; notes what ran."""

    def __init__(self, kernels: Any, early: float, spoil: Callable[[], object]) -> None:
        self.kernels, self.early, self.spoil = kernels, early, spoil
        self.asked: list[bool] = []

    def __call__(self, calls: Sequence[Callable[[], object]]) -> float:
        for call in calls:
            call()
        is_early = self.kernels.launches_early
        self.asked.append(is_early)
        if is_early:
            self.spoil()
        return self.early if is_early else 100.0


@pytest.mark.parametrize(
    ("can", "early", "is_wrong", "choice"),
    [
        (True, 90.0, False, True),
        (True, 99.0, False, False),
        (True, 90.0, True, False),
        (False, 90.0, False, False),
    ],
)
def test_launches_are_early_where_that_is_faster_and_computes_the_same(
    make_device_engine: Make,
    device_runner: Callable[[Any], Any],
    can: bool,
    early: float,
    is_wrong: bool,
    choice: bool,
) -> None:
    runner = device_runner(make_device_engine(max_running=2))
    kernels = TorchKernels()
    kernels.can_launch_early = can
    table = TuningTable(MACHINE)

    def spoil() -> None:
        runner.logits[0, 0] += 1.0 if is_wrong else 0.0

    clock = Deciding(kernels, early, spoil)
    choose_launches(runner, kernels, table, clock)
    assert kernels.launches_early == choice
    assert clock.asked == ([False, True] if can else [])
    choose_launches(runner, kernels, table, clock)
    assert kernels.launches_early == choice
    assert len(clock.asked) == (2 if can else 0)


def test_early_launches_that_are_known_are_checked_and_left_alone_once_they_differ(
    make_device_engine: Make,
    device_runner: Callable[[Any], Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner: Any = Steps(device_runner(make_device_engine(max_running=2)))
    kernels = TorchKernels()
    kernels.can_launch_early = True
    choose_launches(
        runner, kernels, TuningTable(MACHINE, tmp_path), Deciding(kernels, 90.0, lambda: None)
    )
    assert kernels.launches_early
    ran: list[bool] = []

    def step(is_wrong: bool) -> None:
        ran.append(kernels.launches_early)
        runner.logits[:2] = 1.0 + (is_wrong and kernels.launches_early)

    # Made for kernels that are launched in turn, whatever they were before, and not timed.
    for is_wrong, is_early, both in (
        (False, True, [False, True]),
        (True, False, [False, True]),
        (True, False, []),
    ):
        ran.clear()
        made: list[bool] = []

        def uncaptured(lines: int, is_wrong: bool = is_wrong) -> Callable[[], None]:
            made.append(kernels.launches_early)  # noqa: B023
            return partial(step, is_wrong)

        runner.uncaptured = uncaptured
        choose_launches(runner, kernels, TuningTable(MACHINE, tmp_path), never)
        assert (kernels.launches_early, made, ran) == (is_early, [False], both)
    assert caplog.text.count("early was chosen for launches float32 m=2") == 1


def never(calls: Sequence[Callable[[], object]]) -> float:
    """A clock for what is known."""
    raise AssertionError("it is measured again")


class Steps:
    """A runner whose steps write that they ran.

    Attributes:
        lines: of the last one that ran.
        num_steps: how many ran.
        spoil: what happens at the end of each.
    """

    def __init__(self, runner: Any) -> None:
        self.step_sizes, self.logits = runner.step_sizes, runner.logits
        self.max_lines = runner.max_lines
        self.lines = self.num_steps = 0
        self.spoil: Callable[[], object] = lambda: None

    def uncaptured(self, lines: int) -> Callable[[], None]:
        def step() -> None:
            self.lines = lines
            self.num_steps += 1
            self.logits[:lines] = 1.0
            self.spoil()

        return step


def test_norms_and_gates_are_fused_for_the_lines_for_which_that_is_faster(
    make_device_engine: Make, device_runner: Callable[[Any], Any]
) -> None:
    runner: Any = Steps(device_runner(make_device_engine(max_running=8)))
    fusion, table = Fusion(), TuningTable(MACHINE)
    asked: list[tuple[int, bool]] = []

    def clock(calls: Sequence[Callable[[], object]]) -> float:
        (step,) = calls
        step()
        asked.append((runner.lines, runner.lines in fusion.lines))
        return 8.0 if runner.lines in fusion.lines and runner.lines != 2 else 10.0

    sizes = [2, 8, 16, 24]
    choose_fusion(runner, fusion, sizes, table, clock)
    assert asked == [], "there is no norm that a matrix could take over"
    fusion.is_possible = True
    choose_fusion(runner, fusion, sizes, table, clock)
    # None that is more than a matrix unit takes, or a step has; the largest first.
    assert asked == [(8, False), (8, True), (2, False), (2, True)]
    assert fusion.lines == {8}
    fusion.lines.clear()
    choose_fusion(runner, fusion, sizes, table, clock)
    assert fusion.lines == {8}
    assert len(asked) == 4
    # A new start finds them out at once, and never again.
    runner.spoil = lambda: runner.logits.mul_(2.0 if runner.lines in fusion.lines else 1.0)
    for num_checks in (2, 0):
        runner.num_steps = 0
        choose_fusion(runner, fusion, sizes, table, never)
        assert (fusion.lines, runner.num_steps) == (set(), num_checks)
    runner.spoil = lambda: None
    # Of other formats nothing is known.
    runner.step_sizes["weight_bytes"] //= 2
    choose_fusion(runner, fusion, sizes, table, clock)
    assert len(asked) == 8


@pytest.mark.parametrize("at", ["clock", "step"])
def test_a_moment_without_memory_leaves_the_usual_way_for_one_start(
    make_device_engine: Make,
    device_runner: Callable[[Any], Any],
    caplog: pytest.LogCaptureFixture,
    at: str,
) -> None:
    runner: Any = Steps(device_runner(make_device_engine(max_running=8)))
    fusion, kernels, table = Fusion(), TorchKernels(), TuningTable(MACHINE)
    fusion.is_possible = kernels.can_launch_early = True

    def failing(given: object) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    clock: Any = failing if at == "clock" else never
    uncaptured = runner.uncaptured
    if at == "step":
        runner.uncaptured = failing
    choose_launches(runner, kernels, table, clock)
    choose_fusion(runner, fusion, [2, 8], table, clock)
    assert not kernels.launches_early
    assert not fusion.lines
    assert table.entries == []
    assert caplog.text.count("too little memory to autotune how kernels are launched") == 1
    assert caplog.text.count("too little memory to autotune whether norms and gates are fused") == 1
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) == 2
    runner.uncaptured = uncaptured
    choose_launches(runner, kernels, table, Deciding(kernels, 90.0, lambda: None))
    assert kernels.launches_early


def test_a_step_that_cannot_be_made_leaves_the_usual_way(
    make_device_engine: Make, device_runner: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    runner: Any = Steps(device_runner(make_device_engine(max_running=2)))
    kernels = TorchKernels()
    kernels.can_launch_early = True

    def failing(lines: int) -> Callable[[], None]:
        raise RuntimeError("no plan")

    runner.uncaptured = failing
    choose_launches(runner, kernels, TuningTable(MACHINE), lambda calls: 1.0)
    assert not kernels.launches_early
    assert "cannot measure launches for 2 sequences" in caplog.text


def test_a_device_that_is_lost_to_attention_ends_the_start(
    make_device_engine: Make, device_runner: Callable[[Any], Any]
) -> None:
    runner: Any = Steps(device_runner(make_device_engine(max_running=2)))
    kernels = TorchKernels()
    kernels.can_launch_early = True

    def losing(lines: int) -> Callable[[], None]:
        raise DeviceLost("the device was lost to triton")

    runner.uncaptured = losing
    with pytest.raises(DeviceLost):
        choose_launches(runner, kernels, TuningTable(MACHINE), never)
