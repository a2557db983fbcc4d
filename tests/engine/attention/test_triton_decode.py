"""Triton decode attention: captured steps, with torch references in place of kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from gatewayd_engine.attention import triton_decode
from gatewayd_engine.attention.gpu_api import CapturingAttention
from gatewayd_engine.attention.paged import PagedAttention
from gatewayd_engine.attention.triton_decode import DecodeAttention, DecodeKernels
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.attention_shape import AttentionShape
from tests.engine.attention.steps import Sequences, Static
from tests.engine.attention.test_flashinfer import Slow, check
from tests.engine.attention.test_flashinfer_cascade import sharing

SHAPE = AttentionShape(2, 6, 2, 8, 0.3, None, (0, 0))


def attention_of(
    sequences: Sequences, kernels: Any = None, least_saved: int | None = None
) -> DecodeAttention:
    own = DecodeKernels(
        sequences.shape, sequences.pool, sequences.append, kernels or TorchKernels(), 9, 240
    )
    other = PagedAttention(sequences.shape, sequences.pool, sequences.append, own)
    return DecodeAttention(own, other, least_saved)


@pytest.mark.parametrize(
    ("windows", "softcap", "element"),
    [((0, 5), None, None), ((0, 0), 3.0, torch.float8_e4m3fn)],
)
def test_captured_steps_read_the_same_tensors_each_time(
    windows: tuple[int, ...], softcap: float | None, element: torch.dtype | None
) -> None:
    shape = replace(SHAPE, windows=windows, softcap=softcap)
    sequences = Sequences(shape, seed=3, element=element)
    attention = attention_of(sequences)
    assert isinstance(attention, CapturingAttention)
    large, small = Static(sequences, 6), Static(sequences, 2)
    (of_six,), (of_two,) = (attention.captured(static.inputs) for static in (large, small))
    for row, length in enumerate([70, 3, 4, 11]):
        sequences.fill(row, length)
    for _ in range(3):
        check(large, of_six, [0, 1, 2, 3])
        check(small, of_two, [1, 0])
        sequences.check(attention, {0: 1, 3: 1, 4: 2})
        check(large, of_six, [3, 1, 0])
        check(small, of_two, [2])


class Noted(TorchKernels):
    """Notes how contexts are split."""

    def __init__(self) -> None:
        self.splits: list[tuple[int, int]] = []
        self.shared: list[int] = []

    def decode_attention(self, query: torch.Tensor, *args: Any, **named: Any) -> None:
        rows, dim = query.shape[0] * query.shape[1], query.shape[2]
        splits, shared, scratch = named["splits"], named["shared"], named["scratch"]
        all_splits = splits + (shared.splits if shared else 0)
        assert all_splits == 1 or scratch.numel() >= rows * all_splits * (dim + 1)
        self.splits.append((named["window"], splits))
        self.shared.append(all_splits - splits)
        super().decode_attention(query, *args, **named)


def test_contexts_are_split_where_lines_leave_the_chip_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton_decode, "num_multiprocessors", lambda device: 8)
    sequences = Sequences(replace(SHAPE, windows=(0, 100)))
    kernels = Noted()
    attention = attention_of(sequences, kernels)
    for size, of_whole in ((1, 2), (3, 2), (5, 1), (8, 1), (9, 1)):
        static = Static(sequences, size)
        (attend,) = attention.captured(static.inputs)
        check(static, attend, [0])
        assert kernels.splits[-2:] == [(0, of_whole), (100, 1)]


@pytest.mark.parametrize("windows", [(0, 0), (9, 0)])
def test_lines_that_decode_beside_prompts_attend_by_the_kernels(windows: tuple[int, ...]) -> None:
    sequences = Sequences(replace(SHAPE, windows=windows), seed=1)
    attention = attention_of(sequences, kernels := Noted())
    for row, length in enumerate([1, 4, 5, 33, 80]):
        sequences.fill(row, length)
    sequences.check(attention, {3: 1, 0: 1, 4: 1, 1: 7, 5: 2})
    assert len(kernels.splits) == 2
    sequences.check(attention, {3: 1, 0: 1}, out=torch.full((2, 6, 8), 7.0))
    sequences.check(attention, {0: 3, 2: 2})
    assert len(kernels.splits) == 4


def test_a_beginning_that_lines_share_is_replayed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_decode, "num_multiprocessors", lambda device: 8)
    sequences = sharing(SHAPE, 10)
    attention = attention_of(sequences, kernels := Noted(), least_saved=64)
    static = Static(sequences, 6)
    kinds = attention.captured(static.inputs)
    rows = [3, 0, 1, 2, 4]
    found = [check(static, kinds, rows, shared_pages=pages) for pages in (10, 0, 4, 10)]
    assert [kinds.index(kind) for kind in found] == [0, 1, 0, 0]
    # What may be shared has parts where what is not shared has none.
    assert kernels.shared[-2:] == [2, 2]
    assert len(attention.captured(Static(sequences, 1).inputs)) == 1
    assert len(attention_of(sequences).captured(static.inputs)) == 1


def test_with_windows_nothing_is_shared() -> None:
    sequences = sharing(replace(SHAPE, windows=(0, 9)), 10)
    attention = attention_of(sequences, least_saved=64)
    assert attention.least_saved is None
    assert len(attention.captured(Static(sequences, 6).inputs)) == 1


def test_a_replay_waits_for_pages_on_their_way() -> None:
    sequences = Sequences(SHAPE)
    static = Static(sequences, 2)
    (attend,) = attention_of(sequences).captured(static.inputs)
    slow = Slow()
    sequences.pool.transfers = slow  # type: ignore[assignment]
    check(static, attend, [0, 1])
    assert slow.waited == ["all"]
