"""The choice between FlashInfer's captured decode steps and ours, over stand-ins of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_engine.attention import measuring
from gatewayd_engine.attention.base import AttentionShape
from gatewayd_engine.attention.decode import CapturedDecode, DecodeAttention, DecodeKernels
from gatewayd_engine.attention.measuring import DecodeChoice
from gatewayd_engine.device.graphs import Graphs
from gatewayd_engine.kernels.twins import TorchKernels
from gatewayd_engine.tuning import clock as clock_module
from gatewayd_engine.tuning.table import Lost, Machine, Table
from tests.engine.attention.steps import Sequences, Static
from tests.engine.attention.test_flash import check

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
    shape, pool, append = sequences.shape, sequences.pool, sequences.append
    own = DecodeKernels(shape, pool, append, kernels or TorchKernels(), 8, 1100)
    table = Table(Machine("chip", "9.0", {}), folder)
    flash = flashinfer.FlashAttention(shape, pool, append)
    return DecodeAttention(own, flash, choice=DecodeChoice(shape, pool, table, clock))


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


def test_what_is_known_is_not_measured_again(
    flashinfer: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for clock in (Clock(7.0, 12.0), Clock()):
        sequences = sequences_of()
        attention = made(flashinfer, sequences, clock, folder=tmp_path)
        assert len(attention.captured(Static(sequences, 2).inputs)) == 2
        # Nor are pages filled.
        monkeypatch.setattr(measuring, "_Trial", None)


def test_a_device_that_is_lost_ends_the_start(
    flashinfer: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_module, "_is_lost", lambda device: True)
    sequences = sequences_of()
    attention = made(flashinfer, sequences, Clock(), Raising())
    inputs = Static(sequences, 2).inputs
    with pytest.raises(Lost):
        Graphs([2], lambda size: attention.captured(inputs), lambda part: None, "%s")


def test_a_pool_without_room_measures_nothing(flashinfer: SimpleNamespace) -> None:
    sequences = Sequences(SHAPE, rows=3, max_len=100, page_size=16)
    clock = Clock()
    (attend,) = made(flashinfer, sequences, clock).captured(Static(sequences, 2).inputs)
    assert (type(attend).__name__, clock.asked) == ("_Captured", 0)
