"""Selection of the attention backend for a device."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from gatewayd_engine.attention.append import Append
from gatewayd_engine.attention.gpu_api import DeviceAttention
from gatewayd_engine.attention.paged import PagedAttention
from gatewayd_engine.attention.shared_prefix import LEAST_SAVED
from gatewayd_engine.attention.sinks import SinkScaling
from gatewayd_engine.attention.triton_decode import DecodeAttention, DecodeKernels
from gatewayd_engine.attention.tune_decode import DecodeChoice
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_shape import AttentionShape

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels
    from gatewayd_engine.tuning.tuner import Tuning

_HEAD_DIMS = (64, 128, 256)
_AMPERE = 8


def device_attention(
    shape: AttentionShape,
    pool: KvPool,
    append: Append,
    kernels: Kernels,
    max_lines: int,
    max_len: int,
    shares_prefixes: bool,
    tuning: Tuning | None = None,
    sinks: Sequence[torch.Tensor] | None = None,
) -> DeviceAttention:
    """Return FlashInfer's attention where it supports the model, else torch's and the built-in one.

    Args:
        shape: attention shape of the model.
        pool: KV pool.
        append: applies rotary embedding and appends keys and values to the pool.
        kernels: kernels of the device.
        max_lines: most sequences of a step.
        max_len: most tokens of a sequence.
        shares_prefixes: whether shared prefixes are attended once (cascade attention).
        tuning: measures whether FlashInfer's captured decode steps or those of the built-in kernels
            are faster; None uses FlashInfer's.
        sinks: by layer, the scores of the heads' attention sinks, float32, shape ``[num_heads]``;
            None for none.
    """
    data = pool.data
    if not data.is_cuda:
        return PagedAttention(shape, pool, append, sinks=sinks)
    knows = (
        torch.cuda.get_device_capability(data.device)[0] >= _AMPERE
        and pool.dtype in (torch.bfloat16, torch.float16)
        and shape.head_dim in _HEAD_DIMS
        and not (shape.chunked and any(window % pool.page_size for window in shape.windows))
        and not shape.values_are_keys
    )
    own = DecodeKernels(shape, pool, append, kernels, max_lines, max_len, sinks)
    other: DeviceAttention
    scaling = None if sinks is None else SinkScaling(kernels, sinks)
    if not knows or find_spec("flashinfer") is None:
        other = PagedAttention(shape, pool, append, own, sinks)
    elif shape.chunked and any(shape.windows):
        # Imported where it is used: FlashInfer is optional.
        from gatewayd_engine.attention.flashinfer.chunked import ChunkedAttention

        other = ChunkedAttention(shape, pool, append, scaling)
    elif shares_prefixes:
        from gatewayd_engine.attention.flashinfer.cascade import CascadeAttention

        other = CascadeAttention(shape, pool, append, sinks=scaling)
    else:
        from gatewayd_engine.attention.flashinfer.backend import FlashAttention

        other = FlashAttention(shape, pool, append, scaling)
    choice = None
    if tuning is not None:
        choice = DecodeChoice(
            shape, pool, kernels, tuning.table, tuning.clock, has_sinks=sinks is not None
        )
    return DecodeAttention(own, other, LEAST_SAVED if shares_prefixes else None, choice)
