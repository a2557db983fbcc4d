"""Storage layout of a compressed-tensors checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatewayd_quant_compressed_tensors.form import WeightForm
from gatewayd_quant_compressed_tensors.nvfp4 import Nvfp4
from gatewayd_quant_compressed_tensors.targets import ModuleTargets

if TYPE_CHECKING:
    import torch

    from gatewayd_hooks.quantization import Matrix, Stored, Weight

_EMBEDDING = "model.embed_tokens"


@dataclass(frozen=True, slots=True)
class CompressedScheme:
    """Groups of matrices, each with its own storage form.

    Attributes:
        groups: in the order of the file.
        ignored: matrices stored as floats, whatever groups say.
    """

    groups: tuple[tuple[ModuleTargets, WeightForm | Nvfp4], ...]
    ignored: ModuleTargets

    def stored(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]] | None:
        """See ``Scheme``."""
        form = self._form(matrix)
        return None if form is None else form.stored(matrix)

    def optional(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]]:
        """See ``Scheme``."""
        form = self._form(matrix)
        return {} if form is None else form.optional()

    def weight(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> Weight:
        """See ``Scheme``."""
        form = self._form(matrix)
        if form is None:
            raise ValueError("it is stored as floats")
        return form.weight(matrix, take)

    def _form(self, matrix: Matrix) -> WeightForm | Nvfp4 | None:
        """Return the form of the most specific group; None for a matrix stored as floats."""
        if matrix.name == _EMBEDDING or self.ignored.rank(matrix.name):
            return None
        ranks = [targets.rank(matrix.name) for targets, _ in self.groups]
        best = max(ranks)
        return self.groups[ranks.index(best)][1] if best else None
