"""Products of weights in groups of 16 columns, by the kernel of 4 bits, whose smallest have 32.

Each 16 columns are written twice, so that a group has 32: each code as a sum of two of 4 bits,
which are multiplied with the same activations, once times a power of two. No code is rounded.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from gatewayd_engine.model.linears.int4 import Int4Linear, are_even
from gatewayd_engine.model.linears.packed_cpu import PackedLinear
from gatewayd_hooks.quantization import GroupedWeight

_COLUMNS = 16
_HALF = 8


class _Sum(NamedTuple):
    """Codes as ``high * first + low * second + middle``, both of 4 bits around zero."""

    high: int
    low: int
    middle: int = 0

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the largest code."""
        times = self.high + self.low
        return self.middle - _HALF * times, self.middle + (_HALF - 1) * times


_SUMS = (_Sum(1, 0), _Sum(1, 1), _Sum(8, 1), _Sum(16, 1, _HALF))
"""Of 4 bits; of nvfp4, which are even to 12; of 6 bits; of 8 bits, the last resort."""


class SixteensLinear(PackedLinear):
    """``x @ (codes * scales + offsets).T + bias``.

    Scales, and what is added to codes, are rounded to bfloat16, as ``Int4Linear`` has it.

    Args:
        weight: one that ``is_for_sixteens``.
        bias: float, shape ``[out]``.
    """

    __slots__ = ("_inner", "_order", "_times")

    def __init__(self, weight: GroupedWeight, bias: torch.Tensor | None = None) -> None:
        codes, scales, offsets, self._order = *weight[:3], None
        if weight.group_of is not None:
            self._order = weight.group_of.argsort(stable=True)
            codes = codes[:, self._order]
        lowest = 0 if codes.dtype == torch.int8 else -(1 << (weight.bits - 1))
        whole = codes.to(torch.int16).add_(lowest)
        kind = _sum(whole)
        whole -= kind.middle
        first = whole.add(kind.high // 2).floor_divide_(kind.high).clamp_(-_HALF, _HALF - 1)
        second = whole.sub_(first * kind.high).mul_(kind.low)
        both = torch.stack([_in_sixteens(each.to(torch.int8)) for each in (first, second)], 2)
        if kind.middle != lowest or offsets is not None:
            offsets = (kind.middle - lowest) * scales + (0.0 if offsets is None else offsets)
            # They are multiplied with the sum of all that is given for a column.
            offsets /= kind.high + kind.low
        self._times = torch.tensor([[kind.high], [kind.low]], dtype=torch.bfloat16)
        twice = weight._replace(codes=both.flatten(1), offsets=offsets, bits=4, group_of=None)
        self._inner = Int4Linear(twice)
        super().__init__(bias, self._order)
        self.nbytes += self._inner.nbytes

    def _multiplied(self, x: torch.Tensor) -> torch.Tensor:
        if self._order is not None:
            x = x[:, self._order]
        # Exact: powers of two. A zero times what is no number is none, as it should be.
        given = _in_sixteens(x.to(torch.bfloat16)).unsqueeze(2) * self._times
        return self._inner(given.flatten(1))


def is_for_sixteens(weight: GroupedWeight) -> bool:
    """Whether the codes are integers, and all groups of a multiple of 16 columns."""
    columns = weight.codes.shape[1]
    groups = weight.scales.shape[1]
    return (
        weight.activations == "float"
        and weight.codes.dtype in (torch.uint8, torch.int8)
        and columns % (groups * _COLUMNS) == 0
        and (weight.group_of is None or are_even(weight.group_of, groups))
    )


def _sum(codes: torch.Tensor) -> _Sum:
    """The first that all codes have."""
    if not codes.numel():
        return _SUMS[0]
    least, most = (int(each) for each in torch.aminmax(codes))
    return next(s for s in _SUMS if s.bounds[0] <= least and most <= s.bounds[1])


def _in_sixteens(numbers: torch.Tensor) -> torch.Tensor:
    """Shape ``[n, columns / 16, 16]``."""
    return torch.unflatten(numbers, 1, (-1, _COLUMNS))
