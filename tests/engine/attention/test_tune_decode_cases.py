"""Decode attention tuning cases: measured before a choice, and freed afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.tuning.table import TuningTable
from tests.engine.attention.steps import Sequences, Static
from tests.engine.attention.test_tune_decode import MACHINE, SHAPE, Clock, kinds_of, made


class WrongAt(TorchKernels):
    """Wrong in layers of one window."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def decode_attention(self, *args: Any, **named: Any) -> None:
        if named["window"] == self.window:
            named["scale"] = 0.5
        super().decode_attention(*args, **named)


class WrongLengths(TorchKernels):
    """Takes other lengths of last pages than there are."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.change = change

    def decode_attention(self, *args: Any, **named: Any) -> None:
        query, layer, indptr, pages, last, out = args
        super().decode_attention(query, layer, indptr, pages, self.change(last), out, **named)


class WithoutMemory(TorchKernels):
    """There is none for what it needs."""

    def decode_attention(self, *args: Any, **named: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


def sequences_of(windows: tuple[int, ...] = SHAPE.windows, max_len: int = 1100) -> Sequences:
    """Room for two lines of so many tokens, in pages of zeros."""
    made = Sequences(replace(SHAPE, windows=windows), rows=3, max_len=max_len, page_size=16)
    made.pool.data.zero_()
    return made


@pytest.mark.parametrize("windows", [(9, 0), (0, 9)])
@pytest.mark.parametrize("wrong", [9, 0])
def test_a_kernel_that_is_wrong_for_one_window_is_refused(
    flashinfer: SimpleNamespace, windows: tuple[int, ...], wrong: int
) -> None:
    sequences = sequences_of(windows)
    attention = made(flashinfer, sequences, Clock(1.0, 1.0), WrongAt(wrong))
    assert kinds_of(attention, Static(sequences, 2)) == ["_Captured"]
    assert not sequences.pool.data.any()


@pytest.mark.parametrize(
    ("lines", "change"),
    [
        (1, lambda last: torch.full_like(last, 16)),
        (2, lambda last: torch.full_like(last, 16)),
        (2, lambda last: last[:1].expand_as(last)),
        (2, lambda last: last.flip(0)),
    ],
)
def test_a_kernel_that_is_wrong_in_last_pages_is_refused(
    flashinfer: SimpleNamespace, lines: int, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    # Room for the shortest context alone: of a thousand tokens a few do not show.
    sequences = sequences_of((0, 0), 256)
    attention = made(flashinfer, sequences, Clock(1.0), WrongLengths(change))
    (kind,) = attention.captured(Static(sequences, lines).inputs)
    assert type(kind).__name__ == "_Captured"


@pytest.mark.parametrize("number", [1, 2])
def test_a_trial_without_memory_leaves_nothing_behind(
    flashinfer: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    number: int,
) -> None:
    sequences, calls, randn = sequences_of(), list[int](), torch.randn

    def failing(*args: Any, **named: Any) -> torch.Tensor:
        calls.append(0)
        if len(calls) % number == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return randn(*args, **named)

    static = Static(sequences, 2)
    before = [tensor.clone() for tensor in static.tensors]
    attention = made(flashinfer, sequences, Clock(), folder=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "randn", failing)
        (kind,) = attention.captured(static.inputs)
    assert type(kind).__name__ == "_Captured"
    assert all(map(torch.equal, static.tensors, before))
    assert not sequences.pool.data.any()
    assert caplog.text.count("too little memory to autotune decode attention") == 1
    assert TuningTable(MACHINE, tmp_path).entries == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_trial_that_is_broken_off_leaves_nothing_behind(
    flashinfer: SimpleNamespace, error: type[BaseException]
) -> None:
    sequences = sequences_of()
    static = Static(sequences, 2)
    before = [tensor.clone() for tensor in static.tensors]

    def clock(calls: Sequence[Callable[[], object]]) -> float:
        raise error

    attention: Any = made(flashinfer, sequences, clock)  # type: ignore[arg-type]
    with pytest.raises(error):
        attention.captured(static.inputs)
    assert all(map(torch.equal, static.tensors, before))
    assert not sequences.pool.data.any()


def test_a_kernel_without_memory_is_measured_at_the_next_start(
    flashinfer: SimpleNamespace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sequences = sequences_of()
    attention = made(flashinfer, sequences, Clock(), WithoutMemory(), tmp_path)
    assert [type(k).__name__ for k in attention.captured(Static(sequences, 2).inputs)] == [
        "_Captured"
    ]
    assert caplog.text.count("too little memory to autotune decode attention") == 1
    attention = made(flashinfer, sequences, Clock(7.0, 7.0), folder=tmp_path)
    assert kinds_of(attention, Static(sequences, 2)) == ["CapturedDecode"]
    # Nor does it cost a choice that is known.
    attention = made(flashinfer, sequences, Clock(), WithoutMemory(), tmp_path)
    assert [type(k).__name__ for k in attention.captured(Static(sequences, 2).inputs)] == [
        "_Captured"
    ]
    attention = made(flashinfer, sequences, Clock(), folder=tmp_path)
    assert kinds_of(attention, Static(sequences, 2)) == ["CapturedDecode"]
