"""A float of eight bits for each number, and behind them the scale of the token's head."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from gatewayd_hooks.resources import EngineResources
    from gatewayd_kv_fp8.config import Fp8CodecConfig

_SCALE_BYTES = 2
_LEAST_SCALE = 2.0**-126


class _Format(NamedTuple):
    """Floats of eight bits.

    A float16 has its sign first and then the exponent, too: with the bits in place, and the
    difference of the biases for a factor, all finite codes are exact. torch's own cast of e4m3
    takes 28 times as long.

    Attributes:
        dtype: torch's.
        most: the largest of them.
        shift: to where a float16 has its exponent and mantissa.
        factor: by how much that float16 is too small.
    """

    dtype: torch.dtype
    most: float
    shift: int
    factor: float

    def as_float16(self, codes: torch.Tensor) -> torch.Tensor:
        """Numbers of codes, ``factor`` times too small."""
        wide = codes.view(torch.int8).to(torch.int16).bitwise_left_shift_(self.shift)
        if self.shift < 8:
            wide.bitwise_and_(_BUT_THE_SIGN_TWICE)
        return wide.view(torch.float16)


_BUT_THE_SIGN_TWICE = ~(1 << 14)
"""A code of int8 has its sign in all higher bits: that of the exponent's first must go."""
_FORMATS = {
    "e4m3": _Format(torch.float8_e4m3fn, 448.0, 7, 2.0**8),
    "e5m2": _Format(torch.float8_e5m2, 57_344.0, 8, 1.0),
}


class _Parts(NamedTuple):
    """What records are made of.

    Attributes:
        records: they, shape ``[..., record_bytes]``.
        codes: of the format's type, shape ``[..., head_dim]``.
        scales: bfloat16, shape ``[..., 1]``; None without any.
    """

    records: torch.Tensor
    codes: torch.Tensor
    scales: torch.Tensor | None


class Fp8Codec:
    """The largest number of a token's head becomes the largest code, if there are scales.

    The scale in a record is ``factor`` times what codes are to be multiplied by: it multiplies what
    ``as_float16`` makes of them.
    """

    def __init__(self, config: Fp8CodecConfig) -> None:
        self._format = _FORMATS[config.format]
        self._scales = config.scale == "token"
        self._written: _Parts | None = None

    def open(self, resources: EngineResources) -> None:
        """Nothing is needed."""

    def close(self) -> None:
        """Nothing was taken."""

    def record_bytes(self, head_dim: int, dtype: torch.dtype) -> int:
        """See ``KvCodecStrategy``."""
        if not self._scales:
            return head_dim
        if head_dim % _SCALE_BYTES:
            raise ValueError(f"heads have {head_dim} numbers, and it takes an even number of them")
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
            # Beyond the largest is NaN, or infinity.
            parts.codes.copy_(numbers.clamp(-form.most, form.most))
            return
        scales = numbers.abs().amax(-1, keepdim=True).mul_(form.factor / form.most)
        kept = parts.scales.copy_(scales.add_(_LEAST_SCALE))
        # It may have been rounded down, but not so far that the largest is rounded up.
        parts.codes.copy_(torch.div(numbers, kept).mul_(form.factor))

    def decode(self, records: torch.Tensor, out: torch.Tensor) -> None:
        """See ``KvCodecStrategy``."""
        form, parts = self._format, self._parts(records)
        out.copy_(form.as_float16(parts.codes))
        out.mul_(form.factor if parts.scales is None else parts.scales)

    def _parts(self, records: torch.Tensor) -> _Parts:
        """Look at records; those of a step are written to, and read, in each layer."""
        if self._written is not None and self._written.records is records:
            return self._written
        if not self._scales:
            return _Parts(records, records.view(self._format.dtype), None)
        dim = records.shape[-1] - _SCALE_BYTES
        scales = records.view(torch.bfloat16)[..., dim // _SCALE_BYTES :]
        return _Parts(records, records[..., :dim].view(self._format.dtype), scales)
