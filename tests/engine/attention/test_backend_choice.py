"""Attention backend: chosen by device."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_engine.attention import select, triton_decode
from gatewayd_engine.attention.paged import PagedAttention
from gatewayd_engine.attention.select import device_attention
from gatewayd_engine.attention.triton_decode import DecodeAttention
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.attention_shape import AttentionShape
from tests.engine.attention.steps import Sequences


def test_without_a_gpu_it_is_torch_and_flashinfer_is_left_alone() -> None:
    sequences = Sequences(AttentionShape(1, 2, 1, 64, 0.3, None, (0,)))
    before = set(sys.modules)
    shape, pool, append = sequences.shape, sequences.pool, sequences.append
    attention = device_attention(shape, pool, append, TorchKernels(), 8, 64, shares_prefixes=True)
    assert isinstance(attention, PagedAttention)
    assert not {name for name in set(sys.modules) - before if "flash" in name}


@pytest.mark.parametrize(
    ("windows", "name"), [((8, 0), "ChunkedAttention"), ((0, 0), "FlashAttention")]
)
def test_flashinfer_s_steps_of_chunks_have_sinks_too(
    flashinfer: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    windows: tuple[int, ...],
    name: str,
) -> None:
    shape = AttentionShape(2, 2, 1, 64, 0.3, None, windows, chunked=True)
    sequences = Sequences(shape, dtype=torch.bfloat16, has_sinks=True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
    monkeypatch.setattr(triton_decode, "num_multiprocessors", lambda device: 8)
    monkeypatch.setattr(select, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True), raising=False)
    attention = device_attention(
        *(shape, sequences.pool, sequences.append, TorchKernels(), 8, 64),
        shares_prefixes=False,
        sinks=sequences.sinks,
    )
    assert isinstance(attention, DecodeAttention)
    other: Any = attention._other
    assert type(other).__name__ == name
    assert other._sinks._sinks is sequences.sinks
