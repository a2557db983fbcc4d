"""GPTQ (arXiv 2210.17323): columns are quantized one by one, the rest compensates each error."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from gatewayd_hooks.helpers.rounding import Grid, made, spanning
from gatewayd_hooks.quantization import GroupedWeight

_log = logging.getLogger(__name__)

_BLOCK = 128
"""Columns after which errors are propagated to all following ones; before, within the block."""
_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class Rounding:
    """Quantization parameters.

    Attributes:
        bits: per code.
        group_size: columns that share a scale and a zero point; -1 for all.
        is_symmetric: whether zero points are in the middle.
        is_ordered: whether columns with the largest inputs go first.
        damping: fraction of the mean that is added to the Hessian's diagonal.
    """

    bits: int
    group_size: int
    is_symmetric: bool
    is_ordered: bool
    damping: float

    def fit(self, weight: torch.Tensor, gram: torch.Tensor) -> GroupedWeight | None:
        """Quantize a matrix so that its output changes least.

        Args:
            weight: float32, shape ``[rows, columns]``; not modified.
            gram: of the inputs, float64, shape ``[columns, columns]``; not modified.

        Returns:
            None if the Gram matrix is not positive definite even with damping.

        Raises:
            ValueError: its numbers are too large, or not finite.
        """
        columns = len(gram)
        # An input that was always 0 has no error and no influence.
        gram = gram.clone()
        dead = gram.diagonal() == 0
        gram.diagonal()[dead] = 1.0
        order = torch.arange(columns)
        if self.is_ordered:
            order = gram.diagonal().argsort(descending=True, stable=True)
            gram = gram[order][:, order]
        spread = _spread(gram, self.damping)
        if spread is None:
            return None
        codes, grid = self._rounded(weight[:, order], spread.float())
        if not self.is_ordered:
            return made(codes, grid)
        back = order.argsort()
        # Groups are of columns adjacent in that order, and so scattered in the matrix.
        group_of = torch.div(back, self._size(columns), rounding_mode="floor").to(torch.int32)
        return made(codes[:, back], grid, group_of)

    def _size(self, columns: int) -> int:
        return columns if self.group_size == -1 else self.group_size

    def _rounded(self, weight: torch.Tensor, spread: torch.Tensor) -> tuple[torch.Tensor, Grid]:
        """Return the codes of columns in order, and the grids of groups of adjacent columns."""
        rest = weight.clone()
        rows, columns = rest.shape
        size = self._size(columns)
        # No group spans two blocks: all earlier errors are propagated before a group begins.
        block = size if _BLOCK < size < columns else _BLOCK
        codes = torch.empty_like(rest)
        grids: list[Grid] = []
        for begin in range(0, columns, block):
            end = min(begin + block, columns)
            lost = rest.new_empty((rows, end - begin))
            for column in range(begin, end):
                # A group's grid spans its columns as compensated so far.
                if column % size == 0:
                    grids.append(self._grid(rest[:, column : column + size]))
                here = rest[:, column : column + 1]
                codes[:, column : column + 1] = code = grids[-1].codes(here)
                # The optimal update of the remaining columns: the error times a row of the Cholesky
                # factor.
                error = (here - grids[-1].values(code)).div_(spread[column, column])
                rest[:, column:end].addmm_(error, spread[column : column + 1, column:end], alpha=-1)
                lost[:, column - begin] = error[:, 0]
            # Later columns get the errors of the whole block in one product (lazy batch updates).
            rest[:, end:].addmm_(lost, spread[begin:end, end:], alpha=-1)
        scales, zeros = (torch.cat(parts, 1) for parts in zip(*(g[:2] for g in grids), strict=True))
        return codes, Grid(scales, zeros, self.bits)

    def _grid(self, group: torch.Tensor) -> Grid:
        return spanning(
            group.amin(1, keepdim=True),
            group.amax(1, keepdim=True),
            self.bits,
            is_symmetric=self.is_symmetric,
        )


def _spread(gram: torch.Tensor, damping: float) -> torch.Tensor | None:
    """Return the upper Cholesky factor of the inverse; None if there is none."""
    mean = gram.diagonal().mean()
    # With few calibration rows the Gram matrix is singular: each attempt damps it ten times as
    # much.
    for attempt in range(_ATTEMPTS):
        damped = gram.clone()
        damped.diagonal().add_(damping * 10**attempt * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if failed:
            continue
        upper: torch.Tensor
        upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
        if not failed and upper.isfinite().all():
            if attempt:
                _log.info("Hessian damped by %g", damping * 10**attempt)
            return upper
    return None
