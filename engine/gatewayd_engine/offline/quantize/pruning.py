"""A quantizer that thins out matrices, as one that writes a format: that of floats."""

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
    """What writes: a format's ``Writes``, or what stands for one."""

    def announce(self, packed: Sequence[str], plain: Sequence[str]) -> Mapping[str, Any]:
        """See ``Writes``; nothing for floats."""

    def nearest(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight | SparseWeight:
        """See ``Writes``."""

    def pack(self, matrix: Matrix, weight: Any) -> Mapping[str, torch.Tensor]:  # noqa: ANN401
        """See ``Writes``: of what ``nearest`` or a fit gave."""


class Pruning(Prunes, Quantizes, Protocol):
    """Thins out by what matrices see, and without."""


class Pruner:
    """Writes floats, half of them zeros; see ``Packer`` and ``Calibrates``.

    Args:
        strategy: which of them stay, and what becomes of those.
        kind: the type in which a matrix is stored, by its name.
    """

    propagates = True

    def __init__(self, strategy: Pruning, kind: Callable[[str], torch.dtype]) -> None:
        self._strategy = strategy
        self._kind = kind

    def among(self, matrices: Sequence[Matrix]) -> list[Matrix]:
        """Those that can be thinned out; the log names the others."""
        for matrix in matrices:
            if matrix.columns % _FOUR:
                _log.warning(
                    "%s not pruned: %d columns are not a multiple of %d",
                    *(matrix.name, matrix.columns, _FOUR),
                )
        return [matrix for matrix in matrices if matrix.columns % _FOUR == 0]

    def announce(self, packed: Sequence[str], plain: Sequence[str]) -> Mapping[str, Any]:
        """Nothing: floats announce themselves."""
        self._packed = frozenset(packed)
        return {}

    def scheme(self, announced: Announcement) -> ThinScheme:
        """How what is written will be read."""
        return ThinScheme(self._packed)

    def nearest(self, matrix: Matrix, weight: torch.Tensor) -> SparseWeight:
        """See ``Writes``: the largest stay.

        Raises:
            ValueError: its numbers cannot be thinned out.
        """
        made: Weight | None = self._strategy.quantize(matrix, weight)
        if not isinstance(made, SparseWeight):
            raise ValueError("it is not thinned out")
        return self._rounded(matrix, made)

    def pack(self, matrix: Matrix, weight: SparseWeight) -> Mapping[str, torch.Tensor]:
        """See ``Writes``."""
        return {"weight": weight.values.to(self._kind(matrix.name))}

    def fit(self, site: Site) -> Fit:
        """See ``Calibrates``."""
        made = zip(site.matrices, self._strategy.prune(site), strict=True)
        return Fit(tuple(self._rounded(matrix, weight) for matrix, weight in made))

    def _rounded(self, matrix: Matrix, weight: SparseWeight) -> SparseWeight:
        """What will be read."""
        return SparseWeight(weight.values.to(self._kind(matrix.name)).float())


@dataclass(frozen=True, slots=True)
class ThinScheme:
    """See ``Scheme``: matrices that are stored as the others are, and hold zeros.

    Attributes:
        thin: their names.
    """

    thin: frozenset[str]

    def stored(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]] | None:
        """See ``Scheme``."""
        if matrix.name not in self.thin:
            return None
        shape = (matrix.rows, matrix.columns)
        return {"weight": tuple(Stored(dtype, shape) for dtype in FLOATS)}

    def optional(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]]:
        """See ``Scheme``."""
        return {}

    def weight(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> SparseWeight:
        """See ``Scheme``."""
        return SparseWeight(take("weight").float())
