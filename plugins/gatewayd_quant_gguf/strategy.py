"""Storage layout of a GGUF checkpoint: each matrix in blocks of its own type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from gatewayd_hooks.quantization import GroupedWeight, Stored
from gatewayd_quant_gguf.blocks import FORMS

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import Announcement, Matrix, QuantizerResources, Weight
    from gatewayd_quant_gguf.config import GgufConfig

_FIELDS = frozenset({"quant_method", "types"})
_BLOCK = 1 << 20
"""Numbers dequantized at once."""


class Gguf:
    """Reads checkpoints whose configuration lists the type of each matrix.

    Args:
        config: its settings.
    """

    def __init__(self, config: GgufConfig) -> None:
        self._is_packed = config.packed

    def open(self, resources: QuantizerResources) -> None:
        """Do nothing: the engine reads the files."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def scheme(self, announced: Announcement) -> GgufScheme:
        """See ``Reads``: ``types`` lists all matrices except float ones."""
        where, values = announced.where, announced.values
        if unknown := sorted(map(str, values.keys() - _FIELDS)):
            raise ValueError(f"{where}.{unknown[0]} is unknown")
        types = values.get("types")
        if not isinstance(types, Mapping):
            raise ValueError(
                f"{where}.types must be an object of matrices and types, not {types!r}"
            )
        for name, kind in types.items():
            if not isinstance(kind, str) or kind not in FORMS:
                raise ValueError(
                    f"{where}.types: {name} is of type {kind!r}; read are {', '.join(FORMS)}"
                )
        return GgufScheme(types, is_packed=self._is_packed)


class GgufScheme:
    """Each matrix is one tensor, named by its type: uint8, the concatenated blocks of its rows."""

    def __init__(self, types: Mapping[str, str], *, is_packed: bool) -> None:
        self._types = types
        self._is_packed = is_packed

    def stored(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]] | None:
        """See ``Scheme``."""
        kind = self._types.get(matrix.name)
        if kind is None:
            return None
        form = FORMS[kind]
        nbytes = matrix.columns // form.columns * form.nbytes
        return {kind.lower(): (Stored("U8", (matrix.rows, nbytes)),)}

    def optional(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]]:
        """See ``Scheme``."""
        return {}

    def weight(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> Weight:
        """See ``Scheme``."""
        kind = self._types[matrix.name]
        form = FORMS[kind]
        weight = form.unpack(torch.unflatten(take(kind.lower()), 1, (-1, form.nbytes)))
        for numbers in (weight.scales, weight.offsets):
            if numbers is not None and not numbers.isfinite().all():
                raise ValueError(f"a scale of its {kind} blocks is not finite")
        return weight if self._is_packed else _dense(weight)


def _dense(weight: GroupedWeight) -> torch.Tensor:
    """Dequantize to float32, a few rows at a time to limit temporaries."""
    rows, columns = weight.codes.shape
    made = torch.empty((rows, columns), dtype=torch.float32)
    step = max(1, _BLOCK // columns)
    for begin in range(0, rows, step):
        some = slice(begin, begin + step)
        values = made[some].copy_(weight.codes[some])
        groups = torch.unflatten(values, 1, (weight.scales.shape[1], -1))
        # Multiplied, then added: a fused operation would give other bits than other readers.
        groups *= weight.scales[some].unsqueeze(-1)
        if weight.offsets is not None:
            groups += weight.offsets[some].unsqueeze(-1)
    return made
