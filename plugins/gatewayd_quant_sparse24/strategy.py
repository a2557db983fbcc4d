"""2:4 sparsity: of each four adjacent values in a row two stay, and the others become zeros.

While a model is loaded the two largest stay. For a checkpoint that is written, calibration inputs
decide which, and the remaining ones compensate for the others.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from gatewayd_hooks.quantization import SparseWeight
from gatewayd_quant_sparse24.pruning import pruned

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import Matrix, QuantizerResources, Site

_log = logging.getLogger(__name__)

_HEAD = "lm_head"
_OF, _KEPT = 4, 2
_BLOCK = 1 << 20
"""Numbers processed at once, so that temporaries stay small."""


class Sparse24:
    """Prunes by magnitude, the first among equals staying, or by calibration inputs."""

    def open(self, resources: QuantizerResources) -> None:
        """Do nothing: the model does not matter."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def quantize(self, matrix: Matrix, weight: torch.Tensor) -> SparseWeight | None:
        """Prune a matrix; never the head, and only if the columns are a multiple of 4.

        A checkpoint that was pruned already, by any criterion, is unchanged.

        Raises:
            ValueError: a number is not finite.
        """
        if matrix.name == _HEAD:
            return None
        if matrix.columns % _OF:
            _log.warning(
                "%s not pruned: %d columns are not a multiple of 4", matrix.name, matrix.columns
            )
            return None
        if not weight.isfinite().all():
            raise ValueError("it has numbers that are not finite")
        return SparseWeight(_pruned_by_magnitude(weight))

    def prune(self, site: Site) -> tuple[SparseWeight, ...]:
        """See ``Prunes``.

        Raises:
            ValueError: a number is not finite.
        """
        whole = torch.cat(site.weights)  # rows are independent
        if not whole.isfinite().all():
            raise ValueError("it has numbers that are not finite")
        values = pruned(whole, site.gram)
        if values is None:
            name = site.matrices[0].name
            _log.warning(
                "%s: insufficient calibration data; pruned by magnitude, keeping "
                "the two largest of four",
                name,
            )
            values = _pruned_by_magnitude(whole)
        sizes = [matrix.rows for matrix in site.matrices]
        return tuple(SparseWeight(part) for part in torch.split(values, sizes))


def _pruned_by_magnitude(weight: torch.Tensor) -> torch.Tensor:
    """Return the two largest of each four, and zeros."""
    values = torch.empty_like(weight)
    step = max(1, _BLOCK // weight.shape[1])
    for begin in range(0, len(weight), step):
        some = slice(begin, begin + step)
        values[some] = torch.where(_stays(weight[some]), weight[some], 0.0)
    return values


def _stays(weight: torch.Tensor) -> torch.Tensor:
    """Return which numbers are among the two largest of their four, bool ``[rows, columns]``."""
    sizes = torch.unflatten(weight, 1, (-1, _OF)).abs().unbind(-1)
    stay = []
    for place, size in enumerate(sizes):
        # Counting larger ones needs no sort, and settles ties by position.
        larger = torch.zeros_like(size, dtype=torch.int8)
        for other, theirs in enumerate(sizes):
            if other != place:
                larger += theirs >= size if other < place else theirs > size
        stay.append(larger < _KEPT)
    return torch.stack(stay, -1).flatten(1)
