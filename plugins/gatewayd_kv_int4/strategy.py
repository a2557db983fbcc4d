"""Sixteen levels for each 32 numbers of a head, between the least and the most of them.

A record has, group by group, half a byte for each number, and then the distance of levels and the
least of them, float16. torch has this form for tables of embeddings, each row a group here, and an
operation that makes it: of several a step would take longer for the code that they need than for
the numbers.
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
    """Numbers as they are, or multiplied by a Hadamard matrix."""

    def __init__(self, config: Int4CodecConfig) -> None:
        self._rotates = config.rotate

    def open(self, resources: EngineResources) -> None:
        """Nothing is needed."""

    def close(self) -> None:
        """Nothing was taken."""

    def record_bytes(self, head_dim: int, dtype: torch.dtype) -> int:
        """See ``KvCodecStrategy``."""
        if head_dim % _GROUP:
            raise ValueError(
                f"heads have {head_dim} numbers, which do not divide into groups of {_GROUP};"
                " int8 and fp8 take others"
            )
        return head_dim // _GROUP * _GROUP_BYTES

    def encode(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        numbers = values.float()
        if self._rotates:
            dim = values.shape[-1]
            numbers = rotated(numbers, 1 / (dim & -dim))
        packed = _pack(numbers.clamp(-_MOST, _MOST).view(-1, _GROUP))
        out.copy_(packed.view(out.shape))

    def decode(self, records: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        numbers = _unpack(records.reshape(-1, _GROUP_BYTES)).view(out.shape)
        out.copy_(rotated(numbers, 1.0) if self._rotates else numbers)
