"""KV codec with one bfloat16 per number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from gatewayd_hooks.resources import EngineResources
    from gatewayd_kv_bf16.config import Bf16Config

_MOST = torch.finfo(torch.bfloat16).max


class Bf16:
    """Rounds the numbers of a float32 engine; lossless for a bfloat16 engine."""

    def __init__(self, config: Bf16Config) -> None:
        self._config = config

    def open(self, resources: EngineResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def record_bytes(self, head_dim: int, dtype: torch.dtype) -> int:
        """See ``KvCodecStrategy``."""
        return head_dim * torch.bfloat16.itemsize

    def encode(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        kept = out.view(torch.bfloat16).copy_(values)
        if values.dtype is not torch.bfloat16:
            # The largest float32 numbers would be rounded to infinity.
            kept.clamp_(-_MOST, _MOST)

    def decode(self, records: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        out.copy_(records.view(torch.bfloat16))
