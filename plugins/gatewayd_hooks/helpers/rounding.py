"""Integer grids for column groups of a matrix, shared by writers of checkpoints.

Uses tensor methods alone, so that it imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gatewayd_hooks.quantization import GroupedWeight

if TYPE_CHECKING:
    import torch

_LEAST_SCALE = 2.0**-24
"""Smallest positive number of float16."""


class Grid(NamedTuple):
    """Representable values ``(code - zero) * scale`` of groups.

    Attributes:
        scales: float32, exactly representable in float16.
        zeros: float32, integers that are valid codes; of the same shape.
        bits: per code.
    """

    scales: torch.Tensor
    zeros: torch.Tensor
    bits: int

    def codes(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the nearest codes, integers as float32; shapes are broadcast."""
        most = (1 << self.bits) - 1
        return weight.div(self.scales).round_().add_(self.zeros).clamp_(0, most)

    def values(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the values of codes."""
        return codes.sub(self.zeros).mul_(self.scales)


def spanning(
    least: torch.Tensor,
    most: torch.Tensor,
    bits: int,
    *,
    is_symmetric: bool = False,
    least_zero: int = 0,
) -> Grid:
    """Return grids that cover the range from the minimum to the maximum of groups, including 0.

    Args:
        least: minimum of each group, float32 of any shape.
        most: maximum of each group, of the same shape.
        bits: per code.
        is_symmetric: whether the zero point is in the middle.
        least_zero: the smallest allowed zero point.

    Raises:
        ValueError: a scale is not representable in float16.
    """
    steps = (1 << bits) - 1
    low, high = least.clamp(max=0.0), most.clamp(min=0.0)
    reach = 2 * high.maximum(-low) if is_symmetric else high - low
    # Rounded to float16 before codes are computed, so that codes fit the stored scales.
    scales = (reach / steps).clamp(min=_LEAST_SCALE).half().float()
    if not scales.isfinite().all():
        raise ValueError("it has numbers that are not finite, or too large for scales of float16")
    if is_symmetric:
        return Grid(scales, scales.new_full(scales.shape, (steps + 1) // 2), bits)
    return Grid(scales, low.neg().div_(scales).round_().clamp_(least_zero, steps), bits)


def nearest(
    weight: torch.Tensor,
    group_size: int,
    bits: int,
    *,
    is_symmetric: bool = False,
    least_zero: int = 0,
) -> GroupedWeight:
    """Round a matrix to the grids that span its groups of adjacent columns.

    Args:
        weight: float32, shape ``[rows, columns]``; not modified.
        group_size: columns per group, which divides their number; -1 for all.
        bits: see ``spanning``.
        is_symmetric: see ``spanning``.
        least_zero: see ``spanning``.

    Raises:
        ValueError: a number is too large, or not finite.
    """
    groups = grouped(weight, group_size)
    grid = spanning(
        groups.amin(-1), groups.amax(-1), bits, is_symmetric=is_symmetric, least_zero=least_zero
    )
    return rounded(weight, grid)


def grouped(weight: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return a view of a matrix, of shape ``[rows, groups, size]``."""
    return weight.reshape(len(weight), -1, weight.shape[1] if group_size == -1 else group_size)


def rounded(weight: torch.Tensor, grid: Grid) -> GroupedWeight:
    """Round a matrix to grids of shape ``[rows, groups]``, of groups of adjacent columns."""
    wide = grid._replace(scales=grid.scales.unsqueeze(-1), zeros=grid.zeros.unsqueeze(-1))
    codes = wide.codes(weight.reshape(*grid.scales.shape, -1))
    return made(codes.flatten(1), grid)


def made(codes: torch.Tensor, grid: Grid, group_of: torch.Tensor | None = None) -> GroupedWeight:
    """Return a weight of codes, integers as float32, and grids of shape ``[rows, groups]``."""
    return GroupedWeight(
        codes=codes.byte(),
        scales=grid.scales,
        offsets=-grid.zeros * grid.scales,
        bits=grid.bits,
        group_of=group_of,
    )


def zeros_of(weight: GroupedWeight) -> torch.Tensor:
    """Return the zero points, uint8 ``[rows, groups]``, of a weight returned by ``made``."""
    if weight.offsets is None:
        return weight.scales.new_zeros(weight.scales.shape).byte()
    # The quotient is a zero point except for its last digits.
    return weight.offsets.div(weight.scales).neg_().round_().byte()
