"""A code of eight bits for each number, and behind them the scale of the token's head.

The scale is a bfloat16: it reaches as far as a float32, so no finite number overflows or is lost
for its size, and codes are made with the scale as it was rounded, so its few digits cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from gatewayd_hooks.resources import EngineResources
    from gatewayd_kv_int8.config import Int8Config

_MOST = 127
_SCALE_BYTES = 2
_LEAST_SCALE = 2.0**-126
"""The smallest normal number: zeros have a scale that can be divided by."""


class Int8:
    """Symmetric codes from -127 to 127."""

    def __init__(self, config: Int8Config) -> None:
        self._config = config

    def open(self, resources: EngineResources) -> None:
        """Nothing is needed."""

    def close(self) -> None:
        """Nothing was taken."""

    def record_bytes(self, head_dim: int, dtype: torch.dtype) -> int:
        """See ``KvCodecStrategy``."""
        return head_dim + _SCALE_BYTES

    def encode(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        dim = values.shape[-1]
        numbers = values.float()
        scales = numbers.abs().amax(-1, keepdim=True).div_(_MOST)
        kept = scales.clamp_min_(_LEAST_SCALE).bfloat16()
        codes = numbers.div(kept.float()).round_().clamp_(-_MOST, _MOST)
        out[..., :dim].view(torch.int8).copy_(codes)
        out[..., dim:].copy_(kept.view(torch.uint8))

    def decode(self, records: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        dim = out.shape[-1]
        # Two bytes wherever they lie: only a copy is sure to be aligned.
        kept = records[..., dim:].clone(memory_format=torch.contiguous_format)
        out.copy_(records[..., :dim].view(torch.int8))
        out.mul_(kept.view(torch.bfloat16))
