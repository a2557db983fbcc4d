"""Attention backend: chosen by device."""

from __future__ import annotations

import sys

from gatewayd_engine.attention.paged import PagedAttention
from gatewayd_engine.attention.select import device_attention
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
