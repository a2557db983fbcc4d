"""A bfloat16 for each number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from gatewayd_hooks.resources import EngineResources
    from gatewayd_kv_bf16.config import Bf16Config

_MOST = torch.finfo(torch.bfloat16).max


class Bf16:
    """What a float32 engine's numbers are rounded to, and a bfloat16 engine's are already."""

    def __init__(self, config: Bf16Config) -> None:
        self._config = config

    def open(self, resources: EngineResources) -> None:
        """Nothing is needed."""

    def close(self) -> None:
        """Nothing was taken."""

    def record_bytes(self, head_dim: int, dtype: torch.dtype) -> int:
        """See ``KvCodecStrategy``."""
        return head_dim * torch.bfloat16.itemsize

    def encode(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        kept = out.view(torch.bfloat16).copy_(values)
        if values.dtype is not torch.bfloat16:
            # The largest float32 are nearer to infinity than to a bfloat16.
            kept.clamp_(-_MOST, _MOST)

    def decode(self, records: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        out.copy_(records.view(torch.bfloat16))
