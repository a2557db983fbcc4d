"""KV codec with sixteen levels between the minimum and maximum of each group of 32 numbers.

A record has, group by group, half a byte for each number, and then the step and the minimum,
float16. torch has this format for embedding tables, with a row per group here, and a single
operation that produces it: several operations per step would take longer for dispatch than for the
numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gatewayd_kv_int4.rotation import rotated

if TYPE_CHECKING:
    from gatewayd_hooks.resources import EngineResources
    from gatewayd_kv_int4.config import Int4CodecConfig

_GROUP = 32
_GROUP_BYTES = _GROUP // 2 + 4
_MOST = torch.finfo(torch.float16).max
_pack = torch.ops.quantized.embedding_bag_4bit_prepack
_unpack = torch.ops.quantized.embedding_bag_4bit_unpack


class Int4Codec:
    """4-bit codec of plain numbers, or of those multiplied by a Hadamard matrix."""

    def __init__(self, config: Int4CodecConfig) -> None:
        self._rotates = config.rotate

    def open(self, resources: EngineResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def record_bytes(self, head_dim: int, dtype: torch.dtype) -> int:
        """See ``KvCodecStrategy``."""
        if head_dim % _GROUP:
            raise ValueError(
                f"heads have {head_dim} numbers, not a multiple of {_GROUP}; use int8 or fp8"
            )
        return head_dim // _GROUP * _GROUP_BYTES

    def encode(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        numbers = values.float()
        if self._rotates:
            dim = values.shape[-1]
            numbers = rotated(numbers, 1 / (dim & -dim))
        # The step and the minimum are float16: larger numbers would make them infinite.
        packed = _pack(numbers.clamp(-_MOST, _MOST).view(-1, _GROUP))
        out.copy_(packed.view(out.shape))

    def decode(self, records: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        numbers = _unpack(records.reshape(-1, _GROUP_BYTES)).view(out.shape)
        out.copy_(rotated(numbers, 1.0) if self._rotates else numbers)
