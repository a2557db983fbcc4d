"""Weight-only int4 linear layer on torch's packed int4 CPU kernel."""

from __future__ import annotations

import torch

from gatewayd_engine.model.linears.packed_cpu import PackedLinear
from gatewayd_hooks.quantization import GroupedWeight

_SIZES = (256, 128, 64, 32)
"""Group sizes that the kernel supports."""
_ROWS = 16
"""The kernel needs a multiple of this many rows."""
_TOGETHER = 64
"""Largest number of rows that the kernel packs together."""
_BLOCK = 1 << 18
"""Elements that are converted to int32 at a time, the dtype that packing needs."""
_HALF = 8


class Int4Linear(PackedLinear):
    """``x @ ((codes - 8) * scales + middles).T + bias``, with bfloat16 scales and middles.

    Where a checkpoint stores these with more precision, rounding changes the quantization step by
    a 256th at most and shifts zero points by a 32nd of a step at most.

    Args:
        weight: for which ``fits_int4``.
        bias: float, shape ``[out]``.
    """

    __slots__ = ("_codes", "_numbers", "_order", "_rows", "_size")

    def __init__(self, weight: GroupedWeight, bias: torch.Tensor | None = None) -> None:
        self._rows, columns = weight.codes.shape
        codes, self._order = weight.codes, None
        if weight.group_of is not None:
            # Columns of a group become adjacent; inputs are reordered alike.
            self._order = weight.group_of.argsort(stable=True)
            codes = codes[:, self._order]
        is_signed = codes.dtype == torch.int8
        size = columns // weight.scales.shape[1]
        # The largest kernel size that divides the groups: fewer scales to read.
        self._size = next(each for each in _SIZES if size % each == 0)
        scales = weight.scales.bfloat16()
        offsets = torch.zeros_like(weight.scales) if weight.offsets is None else weight.offsets
        # The kernel subtracts 8 from codes. Signed ones get 8 added below, so only offsets remain.
        middles = (offsets if is_signed else offsets + _HALF * weight.scales).bfloat16()
        pairs = torch.stack((scales, middles), -1).transpose(0, 1)  # [groups, rows, 2]
        pairs = pairs.repeat_interleave(size // self._size, 0)
        missing = -self._rows % _ROWS
        self._numbers = torch.nn.functional.pad(pairs, (0, 0, 0, missing)).contiguous()
        # Whole packs, so that packed blocks can be concatenated.
        step = max(1, _BLOCK // columns // _TOGETHER) * _TOGETHER
        blocks = []
        for some in torch.split(codes, step):
            wide = some.to(torch.int32).add_(_HALF if is_signed else 0)
            wide = torch.nn.functional.pad(wide, (0, 0, 0, -len(some) % _ROWS))
            blocks.append(torch._convert_weight_to_int4pack_for_cpu(wide, 1))
        self._codes = torch.cat(blocks)
        super().__init__(bias, self._codes, self._numbers, self._order)

    def _multiplied(self, x: torch.Tensor) -> torch.Tensor:
        if self._order is not None:
            x = x[:, self._order]
        made = torch._weight_int4pack_mm_for_cpu(
            x.to(torch.bfloat16).contiguous(), self._codes, self._size, self._numbers
        )
        return made if made.shape[1] == self._rows else made[:, : self._rows]


def fits_int4(weight: GroupedWeight) -> bool:
    """Whether the kernel supports a weight: 4 bits, in group sizes it has or that can be split."""
    return weight.bits == 4 and has_int4_groups(weight)


def has_int4_groups(weight: GroupedWeight) -> bool:
    """Whether the kernel supports a weight's groups, whatever the bits of its integer codes."""
    columns = weight.codes.shape[1]
    groups = weight.scales.shape[1]
    return (
        weight.activations == "float"
        and weight.codes.dtype in (torch.uint8, torch.int8)
        and columns % (groups * _SIZES[-1]) == 0
        and (weight.group_of is None or are_even(weight.group_of, groups))
    )


def are_even(group_of: torch.Tensor, groups: int) -> bool:
    """Whether all groups have the same number of columns."""
    counts = group_of.bincount(minlength=groups)
    return bool((counts == counts[0]).all())
