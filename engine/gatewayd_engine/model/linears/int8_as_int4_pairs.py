"""Grouped 8-bit weights on torch's int4 CPU kernel: one product for each half of the codes.

Torch has no kernel for grouped 8-bit weights. The two products read as many bytes in total as one
8-bit product would.
"""

from __future__ import annotations

import torch

from gatewayd_engine.model.linears.int4 import Int4Linear, has_int4_groups
from gatewayd_engine.model.linears.packed_cpu import PackedLinear
from gatewayd_hooks.quantization import GroupedWeight

_MIDDLE = 128
"""Unsigned code that corresponds to the signed code 0."""
_HALF = 8


class Int8AsInt4PairsLinear(PackedLinear):
    """``x @ (codes * scales + offsets).T + bias``, with both halves of a code centred on zero.

    Args:
        weight: for which ``fits_int4_pairs``.
        bias: float, shape ``[out]``.
    """

    __slots__ = ("_high", "_low")

    def __init__(self, weight: GroupedWeight, bias: torch.Tensor | None = None) -> None:
        codes, scales, offsets = weight.codes, weight.scales, weight.offsets
        if codes.dtype == torch.uint8:
            # Flipping the highest bit subtracts 128 in two's complement.
            codes = (codes ^ _MIDDLE).view(torch.int8)
            offsets = _MIDDLE * scales + (0.0 if offsets is None else offsets)
        middles = _HALF * scales + (0.0 if offsets is None else offsets)
        # code = 16 * high + low; the shift keeps the sign. 8 is subtracted from the low half to
        # make it signed, and added as part of the offsets.
        high = weight._replace(codes=codes >> 4, scales=16 * scales, offsets=middles, bits=4)
        low = weight._replace(codes=(codes & 15) - _HALF, offsets=None, bits=4)
        self._high, self._low = Int4Linear(high), Int4Linear(low)
        super().__init__(bias)
        self.nbytes += self._high.nbytes + self._low.nbytes

    def _multiplied(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(torch.bfloat16)
        return self._high(x).float().add_(self._low(x))


def fits_int4_pairs(weight: GroupedWeight) -> bool:
    """Whether a weight is 8-bit in groups that the int4 kernel supports."""
    return weight.bits == 8 and has_int4_groups(weight)
