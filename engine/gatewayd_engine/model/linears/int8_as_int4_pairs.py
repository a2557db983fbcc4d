"""Products of weights of 8 bits in groups, by the kernel of 4 bits: high halves, then low ones.

Torch has no kernel of grouped bytes. Two products of halves read the same bytes once.
"""

from __future__ import annotations

import torch

from gatewayd_engine.model.linears.int4 import Int4Linear, has_groups_for_nibbles
from gatewayd_engine.model.linears.packed_cpu import PackedLinear
from gatewayd_hooks.quantization import GroupedWeight

_MIDDLE = 128
"""What is 0 among signed codes, of unsigned ones."""
_HALF = 8


class HalvesLinear(PackedLinear):
    """``x @ (codes * scales + offsets).T + bias``; both halves lie around zero, as sums then do.

    Args:
        weight: one that ``is_for_halves``.
        bias: float, shape ``[out]``.
    """

    __slots__ = ("_high", "_low")

    def __init__(self, weight: GroupedWeight, bias: torch.Tensor | None = None) -> None:
        codes, scales, offsets = weight.codes, weight.scales, weight.offsets
        if codes.dtype == torch.uint8:
            codes = (codes ^ _MIDDLE).view(torch.int8)
            offsets = _MIDDLE * scales + (0.0 if offsets is None else offsets)
        middles = _HALF * scales + (0.0 if offsets is None else offsets)
        high = weight._replace(codes=codes >> 4, scales=16 * scales, offsets=middles, bits=4)
        low = weight._replace(codes=(codes & 15) - _HALF, offsets=None, bits=4)
        self._high, self._low = Int4Linear(high), Int4Linear(low)
        super().__init__(bias)
        self.nbytes += self._high.nbytes + self._low.nbytes

    def _multiplied(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(torch.bfloat16)
        return self._high(x).float().add_(self._low(x))


def is_for_halves(weight: GroupedWeight) -> bool:
    """Whether the kernel of 4 bits can hold the halves of a weight."""
    return weight.bits == 8 and has_groups_for_nibbles(weight)
