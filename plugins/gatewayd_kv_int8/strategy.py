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
"""The smallest normal number: zeros have a scale that can be divided by, and no other changes.

Sums and products are what a step's code has just done: other operations would take ten times as
long here for being fetched as for being computed."""


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
        if head_dim % _SCALE_BYTES:
            raise ValueError(f"heads have {head_dim} numbers, and it takes an even number of them")
        return head_dim + _SCALE_BYTES

    def encode(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        dim = values.shape[-1]
        numbers = values.float()
        scales = numbers.abs().amax(-1, keepdim=True).mul_(1 / _MOST).add_(_LEAST_SCALE)
        kept = _scales(out, dim).copy_(scales)
        # The scale may have been rounded down, but not so far that the largest is rounded up.
        codes = torch.div(numbers, kept).round_()
        out[..., :dim].view(torch.int8).copy_(codes)

    def decode(self, records: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        dim = out.shape[-1]
        out.copy_(records[..., :dim].view(torch.int8)).mul_(_scales(records, dim))


def _scales(records: torch.Tensor, dim: int) -> torch.Tensor:
    """What is behind the codes of records, ``[..., 1]``."""
    return records.view(torch.bfloat16)[..., dim // _SCALE_BYTES :]
