"""AWQ in the gemm layout of AutoAWQ: words of eight codes, of eight rows each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gatewayd_hooks.helpers.quantized import Fields, divisible, finite, weighs_experts
from gatewayd_hooks.helpers.rounding import nearest, zeros_of
from gatewayd_hooks.quantization import Fit, GroupedWeight, Stored
from gatewayd_quant_awq import fitting
from gatewayd_quant_awq.config import AwqConfig

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import Announcement, Matrix, QuantizerResources, Site

_BITS = fitting.BITS
_IN_A_WORD = 32 // _BITS
_GROUP_SIZES = (16, 32, 64, 128, 256, -1)
_SCALES = ("F16", "BF16")
"""With these a code's product and the sum with its offset are exact in float32."""
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Nibble, from the low end, of each of the eight adjacent rows of a word."""
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The inverse: row in each nibble."""
_KNOWN = (
    *("quant_method", "bits", "group_size", "zero_point", "version", "format"),
    *("modules_to_not_convert", "extra_config"),
)


class Awq:
    """Reads and writes AWQ checkpoints.

    Args:
        config: for writing.
    """

    propagates = False

    def __init__(self, config: AwqConfig | None = None) -> None:
        self._config = config or AwqConfig()

    def open(self, resources: QuantizerResources) -> None:
        """Do nothing: the model does not matter."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def scheme(self, announced: Announcement) -> AwqScheme:
        """See ``Reads``.

        Raises:
            ValueError: unsupported bits, group sizes or packings.
        """
        fields = Fields(announced)
        fields.tell_unknown(_KNOWN)
        fields.refuse_set("extra_config")  # overrides for single matrices
        fields.one_of("bits", (_BITS,))
        fields.one_of("zero_point", (True,), True)
        # Newer transformers call the version format; both may be present.
        fields.one_of("version", ("gemm",), *(("gemm",) if "format" in fields else ()))
        fields.one_of("format", ("gemm",), "gemm")
        group_size = fields.one_of("group_size", _GROUP_SIZES)
        return AwqScheme(group_size, fields.names("modules_to_not_convert"))

    def announce(self, packed: Sequence[str], plain: Sequence[str]) -> Mapping[str, Any]:
        """See ``Writes``.

        Raises:
            ValueError: the name of an unquantized matrix is a part of another's name.
        """
        # Readers look for these names anywhere in the name of a matrix.
        for part in plain:
            for name in packed:
                if part in name:
                    raise ValueError(
                        f"{part} stays unquantized, and AWQ would also match {name}; skip both"
                    )
        return {
            "quant_method": "awq",
            "bits": _BITS,
            "group_size": self._config.group_size,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": list(plain) or None,
        }

    def nearest(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight:
        """See ``Writes``."""
        return nearest(weight, self._config.group_size, _BITS)

    def pack(self, matrix: Matrix, weight: GroupedWeight) -> Mapping[str, torch.Tensor]:
        """See ``Writes``."""
        return {
            "qweight": _packed(weight.codes),
            "qzeros": _packed(zeros_of(weight)),
            "scales": weight.scales.t().half().contiguous(),
        }

    def fit(self, site: Site) -> Fit:
        """See ``Calibrates``."""
        return fitting.fit(site, self._config.group_size)


@dataclass(frozen=True, slots=True)
class AwqScheme:
    """Storage layout of an AWQ checkpoint.

    Attributes:
        group_size: columns that share a scale and a zero point; -1 for all.
        plain: name parts of matrices that are stored as floats.
    """

    group_size: int
    plain: tuple[str, ...]

    def stored(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]] | None:
        """See ``Scheme``: only matrices of layers are packed.

        Raises:
            ValueError: a matrix of its size cannot be packed.
        """
        name = matrix.name
        is_plain = weighs_experts(name) or any(part in name for part in self.plain)
        if ".layers." not in name or is_plain:
            return None
        words = divisible(matrix.name, matrix.rows, _IN_A_WORD, "rows")
        size = matrix.columns if self.group_size == -1 else self.group_size
        groups = divisible(matrix.name, matrix.columns, size, "columns")
        return {
            "scales": tuple(Stored(dtype, (groups, matrix.rows)) for dtype in _SCALES),
            "qzeros": (Stored("I32", (groups, words)),),
            "qweight": (Stored("I32", (matrix.columns, words)),),
        }

    def optional(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]]:
        """See ``Scheme``."""
        return {}

    def weight(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> GroupedWeight:
        """Return ``(code - zero) * scale``; see ``Scheme``."""
        scales = finite("scales", take("scales")).t().contiguous()
        zeros = _unpacked(take("qzeros"))
        return GroupedWeight(
            codes=_unpacked(take("qweight")),
            scales=scales,
            offsets=-zeros.float() * scales,
            bits=_BITS,
        )


def _unpacked(words: torch.Tensor) -> torch.Tensor:
    """Unpack words int32 ``[n, rows / 8]`` to codes uint8 ``[rows, n]``."""
    some = words.flatten().view(torch.uint8)
    nibbles = torch.stack((some & 15, some >> _BITS), -1).view(len(words), -1, _IN_A_WORD)
    return nibbles[..., _PLACES].flatten(1).t().contiguous()


def _packed(codes: torch.Tensor) -> torch.Tensor:
    """Invert ``_unpacked``."""
    some = codes.t().reshape(codes.shape[1], -1, _IN_A_WORD)[..., _ORDER]
    # Two codes per byte, the first in its low half, and four bytes per little-endian word.
    words = some[..., ::2] | some[..., 1::2] << _BITS
    return words.flatten().view(torch.int32).view(len(some), -1)
