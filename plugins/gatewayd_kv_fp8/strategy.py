"""KV codec with one 8-bit float per number, followed by the scale of the token and head."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from gatewayd_hooks.resources import EngineResources
    from gatewayd_kv_fp8.config import Fp8CodecConfig

_SCALE_BYTES = 2
# The smallest normal bfloat16: heads of zeros are not divided by 0.
_LEAST_SCALE = 2.0**-126


class _Format(NamedTuple):
    """8-bit float format.

    A float16 also has its sign first and then the exponent: with the bits shifted into place, and
    the difference of the biases as a factor, all finite codes convert exactly. torch's own cast of
    e4m3 takes 28 times as long.

    Attributes:
        dtype: torch's.
        most: the largest number.
        shift: to the position of exponent and mantissa in a float16.
        factor: by which that float16 is too small.
    """

    dtype: torch.dtype
    most: float
    shift: int
    factor: float

    def as_float16(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the numbers of codes, divided by ``factor``."""
        wide = codes.view(torch.int8).to(torch.int16).bitwise_left_shift_(self.shift)
        if self.shift < 8:
            wide.bitwise_and_(_CLEAR_EXTENDED_SIGN)
        return wide.view(torch.float16)


_CLEAR_EXTENDED_SIGN = ~(1 << 14)
"""Sign extension of int8 copies the sign to all higher bits: it is removed from the exponent's
first bit."""
# The exponent bias of e4m3 is 7, that of float16 is 15, hence 2**8; e5m2 is the upper half of a
# float16.
_FORMATS = {
    "e4m3": _Format(torch.float8_e4m3fn, 448.0, 7, 2.0**8),
    "e5m2": _Format(torch.float8_e5m2, 57_344.0, 8, 1.0),
}


class _Parts(NamedTuple):
    """Views of the parts of records.

    Attributes:
        records: whole records, shape ``[..., record_bytes]``.
        codes: of the format's type, shape ``[..., head_dim]``.
        scales: bfloat16, shape ``[..., 1]``; None without scales.
    """

    records: torch.Tensor
    codes: torch.Tensor
    scales: torch.Tensor | None


class Fp8Codec:
    """Maps the largest number of a token and head to the largest code, if there are scales.

    The scale in a record is ``factor`` times the dequantization scale: it multiplies the result of
    ``as_float16``.
    """

    def __init__(self, config: Fp8CodecConfig) -> None:
        self._format = _FORMATS[config.format]
        self._scales = config.scale == "token"
        self._written: _Parts | None = None

    def open(self, resources: EngineResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def record_bytes(self, head_dim: int, dtype: torch.dtype) -> int:
        """See ``KvCodecStrategy``."""
        if not self._scales:
            return head_dim
        if head_dim % _SCALE_BYTES:
            raise ValueError(f"heads have {head_dim} numbers; fp8 needs an even number")
        return head_dim + _SCALE_BYTES

    def element(self, dtype: torch.dtype) -> torch.dtype | None:
        """See ``PlainRecords``."""
        return None if self._scales else self._format.dtype

    def encode(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        form = self._format
        parts = self._written = self._parts(out)
        numbers = values.float()
        if parts.scales is None:
            # Without clamping, larger numbers would become NaN or infinity.
            parts.codes.copy_(numbers.clamp(-form.most, form.most))
            return
        scales = numbers.abs().amax(-1, keepdim=True).mul_(form.factor / form.most)
        kept = parts.scales.copy_(scales.add_(_LEAST_SCALE))
        # Its rounding error is too small for the largest code to overflow.
        parts.codes.copy_(torch.div(numbers, kept).mul_(form.factor))

    def decode(self, records: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        form, parts = self._format, self._parts(records)
        out.copy_(form.as_float16(parts.codes))
        out.mul_(form.factor if parts.scales is None else parts.scales)

    def _parts(self, records: torch.Tensor) -> _Parts:
        """Return views of records.

        Cached, as those of a step are written and read in each layer.
        """
        if self._written is not None and self._written.records is records:
            return self._written
        if not self._scales:
            return _Parts(records, records.view(self._format.dtype), None)
        dim = records.shape[-1] - _SCALE_BYTES
        scales = records.view(torch.bfloat16)[..., dim // _SCALE_BYTES :]
        return _Parts(records, records[..., :dim].view(self._format.dtype), scales)
