"""A code of eight bits for each number, and behind them the scale of the token's head.

The scale is a bfloat16: it reaches as far as a float32, so no finite number overflows or is lost
for its size, and codes are made with the scale as it was rounded, so its few digits cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from gatewayd_hooks.resources import EngineResources
    from gatewayd_kv_int8.config import Int8CodecConfig

_MOST = 127
_SCALE_BYTES = 2
_LEAST_SCALE = 2.0**-126
"""The smallest normal number: zeros have a scale that can be divided by, and no other changes.

Sums and products are what a step's code has just done: other operations would take ten times as
long here for being fetched as for being computed."""


class _Parts(NamedTuple):
    """What records are made of.

    Attributes:
        records: they, shape ``[..., record_bytes]``.
        codes: int8, shape ``[..., head_dim]``.
        scales: bfloat16, shape ``[..., 1]``.
    """

    records: torch.Tensor
    codes: torch.Tensor
    scales: torch.Tensor


class Int8Codec:
    """Symmetric codes from -127 to 127."""

    def __init__(self, config: Int8CodecConfig) -> None:
        self._config = config
        self._written: _Parts | None = None

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
        parts = self._written = self._parts(out)
        numbers = values.float()
        scales = numbers.abs().amax(-1, keepdim=True).mul_(1 / _MOST).add_(_LEAST_SCALE)
        kept = parts.scales.copy_(scales)
        # The scale may have been rounded down, but not so far that the largest is rounded up.
        parts.codes.copy_(torch.div(numbers, kept).round_())

    def decode(self, records: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        parts = self._parts(records)
        out.copy_(parts.codes).mul_(parts.scales)

    def _parts(self, records: torch.Tensor) -> _Parts:
        """Look at records; those of a step are written to, and read, in each layer."""
        if self._written is not None and self._written.records is records:
            return self._written
        dim = records.shape[-1] - _SCALE_BYTES
        scales = records.view(torch.bfloat16)[..., dim // _SCALE_BYTES :]
        return _Parts(records, records[..., :dim].view(torch.int8), scales)
