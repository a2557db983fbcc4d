"""KV codec with one 8-bit integer per number, followed by the scale of the token and head.

The scale is a bfloat16: it has the range of a float32, so no finite number overflows or underflows,
and codes are computed with the rounded scale, so its low precision costs nothing.
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
"""Smallest normal number: zeros get a scale above 0, and no other changes.

Sums and products are among the operations that a step has just used: others would take ten times as
long here for loading their code as for computing.
"""


class _Parts(NamedTuple):
    """Views of the parts of records.

    Attributes:
        records: whole records, shape ``[..., record_bytes]``.
        codes: int8, shape ``[..., head_dim]``.
        scales: bfloat16, shape ``[..., 1]``.
    """

    records: torch.Tensor
    codes: torch.Tensor
    scales: torch.Tensor


class Int8Codec:
    """Symmetric 8-bit codec with codes from -127 to 127."""

    def __init__(self, config: Int8CodecConfig) -> None:
        self._config = config
        self._written: _Parts | None = None

    def open(self, resources: EngineResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def record_bytes(self, head_dim: int, dtype: torch.dtype) -> int:
        """See ``KvCodecStrategy``."""
        if head_dim % _SCALE_BYTES:
            raise ValueError(f"heads have {head_dim} numbers; int8 needs an even number")
        return head_dim + _SCALE_BYTES

    def encode(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        parts = self._written = self._parts(out)
        numbers = values.float()
        scales = numbers.abs().amax(-1, keepdim=True).mul_(1 / _MOST).add_(_LEAST_SCALE)
        kept = parts.scales.copy_(scales)
        # The rounding error of the scale is too small for the largest code to overflow.
        parts.codes.copy_(torch.div(numbers, kept).round_())

    def decode(self, records: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        parts = self._parts(records)
        out.copy_(parts.codes).mul_(parts.scales)

    def _parts(self, records: torch.Tensor) -> _Parts:
        """Return views of records.

        Cached, as those of a step are written and read in each layer.
        """
        if self._written is not None and self._written.records is records:
            return self._written
        dim = records.shape[-1] - _SCALE_BYTES
        scales = records.view(torch.bfloat16)[..., dim // _SCALE_BYTES :]
        return _Parts(records, records[..., :dim].view(torch.int8), scales)
