"""Decode attention tuning: chooses between FlashInfer's and our captured steps, on stand-ins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_engine.attention import tune_decode
from gatewayd_engine.attention.triton_decode import CapturedDecode, DecodeAttention, DecodeKernels
from gatewayd_engine.attention.tune_decode import DecodeChoice
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.runner.gpu.cuda_graphs import Graphs
from gatewayd_engine.tuning import clock as clock_module
from gatewayd_engine.tuning.table import DeviceLost, TunedMachine, TuningTable
from tests.engine.attention import fake_flashinfer
from tests.engine.attention.steps import Sequences, Static
from tests.engine.attention.test_flashinfer import check

MACHINE = TunedMachine("chip", "9.0", {})
SHAPE = AttentionShape(2, 6, 2, 8, 0.3, None, (0, 9))


class Clock:
    """Gives our kernels the times that it is told, and all others 10 us.

    Attributes:
        times: of our kernels, one after another.
        asked: how many times something was timed.
    """

    def __init__(self, *times: float) -> None:
        self.times = list(times)
        self.asked = 0

    def __call__(self, calls: Sequence[Callable[[], object]]) -> float:
        self.asked += 1
        for call in calls:
            call()
        assert len(calls) == len(SHAPE.windows)
        candidate: Any = calls[0]
        is_own = isinstance(candidate.func.__self__, CapturedDecode)
        return self.times.pop(0) if is_own else 10.0


class Wrong(TorchKernels):
    """Computes something else."""

    def decode_attention(self, *args: Any, **named: Any) -> None:
        super().decode_attention(*args, **{**named, "scale": 0.5})


class Raising(TorchKernels):
    """Does not compile."""

    def decode_attention(self, *args: Any, **named: Any) -> None:
        raise RuntimeError("no")


def made(
    flashinfer: SimpleNamespace,
    sequences: Sequences,
    clock: Clock,
    kernels: Any = None,
    folder: Path | None = None,
) -> DecodeAttention:
    fake_flashinfer.reset()  # a start of its own
    shape, pool, append = sequences.shape, sequences.pool, sequences.append
    kernels = kernels or TorchKernels()
    own = DecodeKernels(shape, pool, append, kernels, 8, 1100)
    table = TuningTable(MACHINE, folder)
    flash = flashinfer.FlashAttention(shape, pool, append)
    choice = DecodeChoice(shape, pool, kernels, table, clock)
    return DecodeAttention(own, flash, choice=choice)


def kinds_of(attention: DecodeAttention, static: Static) -> list[str]:
    """What is captured; each attends at once, by the plan that it is left with."""
    kinds = attention.captured(static.inputs)
    query = torch.randn(len(static.inputs.ids), SHAPE.num_heads, SHAPE.head_dim)
    for kind in kinds:
        kind.attended(0, query)
    return [type(kind).__name__ for kind in kinds]


def sequences_of() -> Sequences:
    """Room for two lines of 1,100 tokens."""
    return Sequences(SHAPE, rows=3, max_len=1100, page_size=16)


def test_a_step_is_replayed_by_what_is_fastest_at_its_length(flashinfer: SimpleNamespace) -> None:
    sequences = sequences_of()
    attention = made(flashinfer, sequences, Clock(7.0, 12.0))
    static = Static(sequences, 2)
    before = [tensor.clone() for tensor in static.tensors]
    kinds = attention.captured(static.inputs)
    assert all(map(torch.equal, static.tensors, before))
    assert not sequences.pool.data[:128, 0].view(torch.uint8).any()
    sequences.fill(0, 511)
    for rows, which in (([0], 0), ([2, 0], 1), ([2], 0)):
        assert kinds.index(check(static, kinds, rows)) == which


@pytest.mark.parametrize(
    ("times", "kernels", "kind"),
    [
        ([7.0, 7.0], None, "CapturedDecode"),
        ([9.9, 9.9], None, "_Captured"),  # less than the margin
        ([1.0, 1.0], Wrong(), "_Captured"),
        ([1.0, 1.0], Raising(), "_Captured"),
    ],
)
def test_one_capture_is_enough_where_one_is_always_chosen(
    flashinfer: SimpleNamespace, times: list[float], kernels: Any, kind: str
) -> None:
    sequences = sequences_of()
    attention = made(flashinfer, sequences, Clock(*times), kernels)
    static = Static(sequences, 2)
    (attend,) = attention.captured(static.inputs)
    assert type(attend).__name__ == kind
    sequences.fill(0, 30)
    check(static, attend, [0, 1])


def test_sizes_up_to_a_power_of_two_are_measured_once(flashinfer: SimpleNamespace) -> None:
    sequences = sequences_of()
    clock = Clock(7.0, 7.0, 12.0, 12.0, 7.0, 7.0)
    attention = made(flashinfer, sequences, clock)
    found = [type(attention.captured(Static(sequences, n).inputs)[0]).__name__ for n in (8, 7, 5)]
    # Of so many lines there is room for the shortest context alone.
    assert (found, clock.asked) == (["CapturedDecode"] * 3, 2)
    attention.captured(Static(sequences, 4).inputs)
    assert clock.asked == 4


def test_what_is_known_is_checked_and_not_measured_again(
    flashinfer: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts: list[int] = []
    trial: Any = tune_decode._Trial

    def noted(*args: Any) -> Any:
        contexts.append(args[-1])
        return trial(*args)

    monkeypatch.setattr(tune_decode, "_Trial", noted)
    for clock in (Clock(7.0, 12.0), Clock()):
        contexts.clear()
        sequences = sequences_of()
        static = Static(sequences, 2)
        before = [tensor.clone() for tensor in static.tensors]
        attention = made(flashinfer, sequences, clock, folder=tmp_path)
        assert kinds_of(attention, static) == ["LengthSwitchedAttention"] * 2
        assert all(map(torch.equal, static.tensors, before))
    # Where FlashInfer's was chosen the pool's pages are left alone.
    assert contexts == [256]


@pytest.mark.parametrize("kernels", [Wrong(), Raising()])
def test_a_known_choice_that_disagrees_is_left_alone_from_then_on(
    flashinfer: SimpleNamespace,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kernels: TorchKernels,
) -> None:
    sequences = sequences_of()
    attention = made(flashinfer, sequences, Clock(7.0, 7.0), folder=tmp_path)
    assert kinds_of(attention, Static(sequences, 2)) == ["CapturedDecode"]
    for _ in range(2):
        sequences = sequences_of()
        attention = made(flashinfer, sequences, Clock(), kernels, tmp_path)
        assert kinds_of(attention, Static(sequences, 2)) == ["_Captured"]
        # The next start has nothing to check.
        monkeypatch.setattr(tune_decode, "_Trial", None)
    for context in (256, 1024):
        case = f"decode_attention float32/float32 m=2 context={context}"
        assert caplog.text.count(f"triton was chosen for {case}") == 1


def test_each_way_of_launching_has_a_choice_of_its_own(
    flashinfer: SimpleNamespace, tmp_path: Path
) -> None:
    for clock in (Clock(12.0, 12.0, 7.0, 7.0), Clock()):
        sequences, kernels = sequences_of(), TorchKernels()
        attention = made(flashinfer, sequences, clock, kernels, tmp_path)
        static = Static(sequences, 2)
        for is_early, kind in ((False, "_Captured"), (True, "CapturedDecode")) * 2:
            kernels.launches_early = is_early
            assert kinds_of(attention, static) == [kind]
        assert clock.times == []
    early = [entry.sizes["early"] for entry in TuningTable(MACHINE, tmp_path).entries]
    assert sorted(early) == [0, 0, 1, 1]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_device_that_is_lost_ends_the_start(
    flashinfer: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_known: bool
) -> None:
    sequences = sequences_of()
    before = made(flashinfer, sequences, Clock(7.0, 7.0), folder=tmp_path)
    if is_known:
        assert kinds_of(before, Static(sequences, 2)) == ["CapturedDecode"]

    def undo(trial: object) -> None:
        raise RuntimeError("the device is lost")

    with monkeypatch.context() as patch:
        patch.setattr(clock_module, "_is_lost", lambda device: True)
        patch.setattr(tune_decode._Trial, "undo", undo)
        attention = made(flashinfer, sequences, Clock(), Raising(), tmp_path)
        inputs = Static(sequences, 2).inputs
        with pytest.raises(DeviceLost):
            Graphs([2], lambda size: attention.captured(inputs), lambda part: None, "%s")
    # The next one leaves our kernels out.
    attention = made(flashinfer, sequences, Clock(), Raising(), tmp_path)
    assert kinds_of(attention, Static(sequences, 2)) == ["_Captured"]


def test_a_pool_without_room_measures_nothing(flashinfer: SimpleNamespace) -> None:
    sequences = Sequences(SHAPE, rows=3, max_len=100, page_size=16)
    clock = Clock()
    (attend,) = made(flashinfer, sequences, clock).captured(Static(sequences, 2).inputs)
    assert (type(attend).__name__, clock.asked) == ("_Captured", 0)
