"""Adapter of pruning strategies to the interface of checkpoint writers; the format is floats."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from gatewayd_engine.model.loading.checkpoint import FLOATS
from gatewayd_hooks.quantization import (
    Announcement,
    Fit,
    GroupedWeight,
    Matrix,
    Prunes,
    Quantizes,
    Site,
    SparseWeight,
    Stored,
    Weight,
)

_log = logging.getLogger(__name__)

_FOUR = 4


class Packer(Protocol):
    """Writer of a checkpoint format: a quantizer's ``Writes``, or a ``Pruner``."""

    def announce(self, packed: Sequence[str], plain: Sequence[str]) -> Mapping[str, Any]:
        """See ``Writes``; empty for floats."""

    def nearest(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight | SparseWeight:
        """See ``Writes``."""

    def pack(self, matrix: Matrix, weight: Any) -> Mapping[str, torch.Tensor]:  # noqa: ANN401
        """See ``Writes``; takes the result of ``nearest`` or of a fit."""


class Pruning(Prunes, Quantizes, Protocol):
    """A strategy that prunes with calibration as well as by magnitude."""


class Pruner:
    """Writer of 2:4 sparse float matrices; see ``Packer`` and ``Calibrates``.

    Args:
        strategy: prunes matrices.
        kind: returns the dtype in which a matrix is stored, by its name.
    """

    propagates = True

    def __init__(self, strategy: Pruning, kind: Callable[[str], torch.dtype]) -> None:
        self._strategy = strategy
        self._kind = kind

    def prunable(self, matrices: Sequence[Matrix]) -> list[Matrix]:
        """Return the matrices that can be pruned, and log the others."""
        for matrix in matrices:
            if matrix.columns % _FOUR:
                _log.warning(
                    "%s not pruned: %d columns are not a multiple of %d",
                    *(matrix.name, matrix.columns, _FOUR),
                )
        return [matrix for matrix in matrices if matrix.columns % _FOUR == 0]

    def announce(self, packed: Sequence[str], plain: Sequence[str]) -> Mapping[str, Any]:
        """Return an empty quantization_config: the checkpoint stores plain floats."""
        self._packed = frozenset(packed)
        return {}

    def scheme(self, announced: Announcement) -> PrunedScheme:
        """Return the scheme that reads the written checkpoint."""
        return PrunedScheme(self._packed)

    def nearest(self, matrix: Matrix, weight: torch.Tensor) -> SparseWeight:
        """Prune by magnitude; see ``Writes``.

        Raises:
            ValueError: the matrix cannot be pruned.
        """
        made: Weight | None = self._strategy.quantize(matrix, weight)
        if not isinstance(made, SparseWeight):
            raise ValueError("the strategy did not prune it")
        return self._rounded(matrix, made)

    def pack(self, matrix: Matrix, weight: SparseWeight) -> Mapping[str, torch.Tensor]:
        """See ``Writes``."""
        return {"weight": weight.values.to(self._kind(matrix.name))}

    def fit(self, site: Site) -> Fit:
        """See ``Calibrates``."""
        made = zip(site.matrices, self._strategy.prune(site), strict=True)
        return Fit(tuple(self._rounded(matrix, weight) for matrix, weight in made))

    def _rounded(self, matrix: Matrix, weight: SparseWeight) -> SparseWeight:
        """Round a weight to the dtype in which it is stored."""
        # So that errors are measured, and later matrices calibrated, with the stored values.
        return SparseWeight(weight.values.to(self._kind(matrix.name)).float())


@dataclass(frozen=True, slots=True)
class PrunedScheme:
    """Scheme of pruned matrices, stored as floats with zeros; see ``Scheme``.

    Attributes:
        pruned: names of the pruned matrices.
    """

    pruned: frozenset[str]

    def stored(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]] | None:
        """See ``Scheme``."""
        if matrix.name not in self.pruned:
            return None
        shape = (matrix.rows, matrix.columns)
        return {"weight": tuple(Stored(dtype, shape) for dtype in FLOATS)}

    def optional(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]]:
        """See ``Scheme``."""
        return {}

    def weight(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> SparseWeight:
        """See ``Scheme``."""
        return SparseWeight(take("weight").float())
