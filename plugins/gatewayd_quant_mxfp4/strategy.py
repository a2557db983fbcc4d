"""MXFP4: 4-bit floats, with a power of two as the scale of each 32 columns.

Source: OCP Microscaling Formats (MX) specification 1.0: E2M1 elements, E8M0 scales.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import torch

from gatewayd_hooks.helpers.float4 import DOUBLED, NAN_EXPONENT, halved_scales
from gatewayd_hooks.helpers.quantized import Fields, divisible
from gatewayd_hooks.quantization import GroupedWeight, Stored

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import Announcement, Matrix, QuantizerResources, Weight

_GROUP = 32
_PLAIN = "modules_to_not_convert"
_PLAIN_BY_DEFAULT = ("model.layers.*.self_attn", "model.layers.*.mlp.router")


class Mxfp4:
    """Reads MXFP4 checkpoints."""

    def open(self, resources: QuantizerResources) -> None:
        """Do nothing: there are no resources to acquire."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def scheme(self, announced: Announcement) -> Mxfp4Scheme:
        """See ``Reads``.

        Raises:
            ValueError: the names of unquantized modules are no list.
        """
        fields = Fields(announced)
        fields.tell_unknown(("quant_method", _PLAIN, "dequantize"))
        return Mxfp4Scheme(fields.names(_PLAIN) or _PLAIN_BY_DEFAULT)


@dataclass(frozen=True, slots=True)
class Mxfp4Scheme:
    """Storage layout of the matrices of one checkpoint.

    Attributes:
        plain: patterns of names of modules that are not quantized.
    """

    plain: tuple[str, ...]

    def stored(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]] | None:
        """See ``Scheme``: matrices of layers are MXFP4 unless they are excluded.

        Raises:
            ValueError: its columns are not a multiple of 32.
        """
        is_plain = any(_has(matrix.name, part) for part in self.plain)
        if is_plain or ".layers." not in matrix.name:
            return None
        groups = divisible(matrix.name, matrix.columns, _GROUP, "columns")
        return {
            "scales": (Stored("U8", (matrix.rows, groups)),),
            "blocks": (Stored("U8", (matrix.rows, groups, _GROUP // 2)),),
        }

    def optional(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]]:
        """See ``Scheme``: there are none."""
        return {}

    def weight(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> Weight:
        """Return ``code * 2 ** (scale - 127)``; see ``Scheme``.

        Raises:
            ValueError: a scale is NaN.
        """
        exponents = take("scales")
        if bool((exponents == NAN_EXPONENT).any()):
            raise ValueError("scales contains a NaN")
        packed = take("blocks").flatten(1)
        # The first of two codes is in the low bits.
        nibbles = torch.stack((packed & 15, packed >> 4), -1).flatten(1)
        table = torch.tensor(DOUBLED, dtype=torch.int8)
        return GroupedWeight(table[nibbles.int()], halved_scales(exponents))


def _has(name: str, part: str) -> bool:
    """Whether a pattern, such as ``model.layers.*.self_attn``, is a matrix or a part around it."""
    return fnmatchcase(name, part) or fnmatchcase(name, f"{part}.*")
