"""Weights quantized in groups of 16 columns, on torch's int4 CPU kernel, which needs groups of 32.

Every 16 columns are duplicated to make a group of 32: each code becomes a sum of two 4-bit codes,
which are multiplied with the same activations times powers of two. No code is rounded.
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
    """Decomposition ``high * first + low * second + middle`` into two signed 4-bit codes."""

    high: int
    low: int
    middle: int = 0

    @property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest code that can be represented."""
        times = self.high + self.low
        return self.middle - _HALF * times, self.middle + (_HALF - 1) * times


_SUMS = (_Sum(1, 0), _Sum(1, 1), _Sum(8, 1), _Sum(16, 1, _HALF))
"""For 4-bit codes; nvfp4, whose codes reach 12 in even steps; 6 bits; 8 bits, as a last resort."""


class GroupsOf16Linear(PackedLinear):
    """``x @ (codes * scales + offsets).T + bias``.

    Scales and zero points are rounded to bfloat16, as in ``Int4Linear``.

    Args:
        weight: for which ``fits_groups_of_16``.
        bias: float, shape ``[out]``.
    """

    __slots__ = ("_inner", "_order", "_times")

    def __init__(self, weight: GroupedWeight, bias: torch.Tensor | None = None) -> None:
        codes, scales, offsets, self._order = *weight[:3], None
        if weight.group_of is not None:
            # Columns of a group become adjacent; inputs are reordered alike.
            self._order = weight.group_of.argsort(stable=True)
            codes = codes[:, self._order]
        # Unsigned codes are shifted to be centred on zero; offsets make up for it below.
        lowest = 0 if codes.dtype == torch.int8 else -(1 << (weight.bits - 1))
        whole = codes.to(torch.int16).add_(lowest)
        kind = _sum(whole)
        whole -= kind.middle
        # The nearest multiple of ``high``; the second code has the rest, zero where one suffices.
        first = whole.add(kind.high // 2).floor_divide_(kind.high).clamp_(-_HALF, _HALF - 1)
        second = whole.sub_(first * kind.high).mul_(kind.low)
        # Sixteen first codes, then the sixteen second codes of the same columns: one group of 32.
        both = torch.stack([_in_sixteens(each.to(torch.int8)) for each in (first, second)], 2)
        if kind.middle != lowest or offsets is not None:
            offsets = (kind.middle - lowest) * scales + (0.0 if offsets is None else offsets)
            # Each column is multiplied twice, by ``high`` and by ``low``, and so is its offset.
            offsets /= kind.high + kind.low
        # Factors are on the inputs, as a group of 32 has one scale.
        self._times = torch.tensor([[kind.high], [kind.low]], dtype=torch.bfloat16)
        twice = weight._replace(codes=both.flatten(1), offsets=offsets, bits=4, group_of=None)
        self._inner = Int4Linear(twice)
        super().__init__(bias, self._order)
        self.nbytes += self._inner.nbytes

    def _multiplied(self, x: torch.Tensor) -> torch.Tensor:
        if self._order is not None:
            x = x[:, self._order]
        # Exact, because factors are powers of two or 0; and 0 times a NaN stays a NaN, as it must.
        given = _in_sixteens(x.to(torch.bfloat16)).unsqueeze(2) * self._times
        return self._inner(given.flatten(1))


def fits_groups_of_16(weight: GroupedWeight) -> bool:
    """Whether codes are integers in even groups of a multiple of 16 columns, activations floats."""
    columns = weight.codes.shape[1]
    groups = weight.scales.shape[1]
    return (
        weight.activations == "float"
        and weight.codes.dtype in (torch.uint8, torch.int8)
        and columns % (groups * _COLUMNS) == 0
        and (weight.group_of is None or are_even(weight.group_of, groups))
    )


def _sum(codes: torch.Tensor) -> _Sum:
    """Return the first decomposition that can represent all codes."""
    if not codes.numel():
        return _SUMS[0]
    least, most = (int(each) for each in torch.aminmax(codes))
    return next(s for s in _SUMS if s.bounds[0] <= least and most <= s.bounds[1])


def _in_sixteens(numbers: torch.Tensor) -> torch.Tensor:
    """Reshape ``[n, columns]`` to ``[n, columns / 16, 16]``."""
    return torch.unflatten(numbers, 1, (-1, _COLUMNS))
