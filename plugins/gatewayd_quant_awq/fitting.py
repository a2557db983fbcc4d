"""AWQ (arXiv 2306.00978): important columns are scaled up before they are quantized.

Their inputs are scaled down accordingly, where these are produced, so that the model's output
stays. Then each group's grid is narrowed as long as that helps: what matters is the error of the
group's output, not of its largest number.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gatewayd_hooks.helpers.rounding import Grid, grouped, nearest, rounded, spanning
from gatewayd_hooks.quantization import Fit, GroupedWeight, Site

BITS = 4
_STEPS = 20
_LEAST = 1e-4
_WIDTHS = tuple(1 - step / 20 for step in range(7))
"""Widths of a grid on each side of zero, relative to the span of the group's numbers."""
_PASSES = 2


def fit(site: Site, group_size: int) -> Fit:
    """Quantize a site: scaling factors first, then grids.

    Raises:
        ValueError: its numbers are too large, or not finite.
    """
    factors = _factors(site, group_size)
    if factors is None:
        made = (_narrowed(weight, site.gram.float(), group_size) for weight in site.weights)
        return Fit(tuple(made))
    gram = (site.gram / torch.outer(factors, factors)).float()
    made = (_narrowed(weight * factors, gram, group_size) for weight in site.weights)
    return Fit(tuple(made), factors)


def _factors(site: Site, group_size: int) -> torch.Tensor | None:
    """Return the factors with the lowest loss of the layer; None if none reduce it."""
    if site.foldable is None:
        return None
    inputs = site.inputs.abs().mean(0).clamp_(min=_LEAST)
    weights = _importance(site.weights, group_size).clamp_(min=_LEAST)
    best, least = None, site.loss([_dense(nearest(w, group_size, BITS)) for w in site.weights])
    for step in range(_STEPS):
        # A grid search between weighting columns by the weights alone, at 0, and by their inputs.
        part = step / _STEPS
        wanted = (inputs**part / weights ** (1 - part)).clamp_(min=_LEAST)
        # The largest and the smallest factor become reciprocal, as in AutoAWQ.
        wanted /= (wanted.max() * wanted.min()).sqrt()
        factors = site.foldable(wanted)
        loss = site.loss(
            [_dense(nearest(w * factors, group_size, BITS)) / factors for w in site.weights]
        )
        if loss < least:
            best, least = factors, loss
    return best


def _importance(weights: Sequence[torch.Tensor], group_size: int) -> torch.Tensor:
    """Return the mean magnitude of each column relative to its groups, ``[columns]``."""
    groups = grouped(torch.cat(tuple(weights)), group_size).abs()
    return groups.div(groups.amax(-1, keepdim=True).clamp_(min=_LEAST**2)).flatten(1).mean(0)


def _narrowed(weight: torch.Tensor, gram: torch.Tensor, group_size: int) -> GroupedWeight:
    """Quantize to the grids, of several widths, with the lowest output error per row.

    Groups are processed one after the other, taking the errors of the others into account, which a
    group can compensate.
    """
    groups = grouped(weight, group_size)
    low, high = groups.amin(-1), groups.amax(-1)
    kept = spanning(low, high, BITS)
    lost = _wide(kept).values(_wide(kept).codes(groups)) - groups
    for _ in range(_PASSES):
        # Coordinate descent: each group is optimized while the errors of the others are fixed.
        for index in range(groups.shape[1]):
            part = slice(index, index + 1)
            columns = slice(index * groups.shape[2], (index + 1) * groups.shape[2])
            lost[:, index] = 0.0
            group = _Group(groups[:, index], gram[columns, columns], lost, gram[:, columns])
            # The present grid is a candidate, so that no pass makes a group worse.
            group.try_grid(Grid(kept.scales[:, part], kept.zeros[:, part], BITS))
            for one in _WIDTHS:
                for other in _WIDTHS:
                    group.try_grid(spanning(low[:, part] * one, high[:, part] * other, BITS))
            lost[:, index], kept.scales[:, part], kept.zeros[:, part] = group.best
    return rounded(weight, kept)


class _Group:
    """Search for the best grid for a group of each row.

    Args:
        numbers: of the group, shape ``[rows, size]``.
        gram: of its inputs, shape ``[size, size]``.
        others: errors of the other groups, shape ``[rows, groups, size]``.
        across: Gram matrix of all inputs with those of the group, shape ``[columns, size]``.

    Attributes:
        best: errors, scales and zero points.
    """

    def __init__(
        self,
        numbers: torch.Tensor,
        gram: torch.Tensor,
        others: torch.Tensor,
        across: torch.Tensor,
    ) -> None:
        self._numbers = numbers
        self._gram = gram
        self._cross_term = 2 * (others.flatten(1) @ across)
        self._least = numbers.new_full((len(numbers), 1), float("inf"))
        self.best = (torch.empty_like(numbers), self._least, self._least)

    def try_grid(self, grid: Grid) -> None:
        """Use a grid, of shape ``[rows, 1]``, in the rows where it is better than any before."""
        lost = grid.values(grid.codes(self._numbers)).sub_(self._numbers)
        # The group's part of the output error: e G e + 2 o G e, with the errors o of the other
        # groups.
        energy = ((lost @ self._gram).add_(self._cross_term)).mul_(lost).sum(1, keepdim=True)
        is_better = energy < self._least
        self._least = torch.where(is_better, energy, self._least)
        pairs = zip((lost, grid.scales, grid.zeros), self.best, strict=True)
        made, scales, zeros = (torch.where(is_better, new, old) for new, old in pairs)
        self.best = (made, scales, zeros)


def _wide(grid: Grid) -> Grid:
    """Broadcast a grid to numbers of shape ``[rows, groups, size]``."""
    return Grid(grid.scales.unsqueeze(-1), grid.zeros.unsqueeze(-1), grid.bits)


def _dense(weight: GroupedWeight) -> torch.Tensor:
    """Dequantize a weight with groups of adjacent columns."""
    values = weight.codes.float().view(*weight.scales.shape, -1).mul_(weight.scales.unsqueeze(-1))
    if weight.offsets is not None:
        values += weight.offsets.unsqueeze(-1)
    return values.view(weight.codes.shape)
