"""GPTQ storage layout of AutoGPTQ: words of codes, packed along the columns of a matrix."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gatewayd_hooks.helpers.quantized import divisible, finite, weighs_experts
from gatewayd_hooks.helpers.rounding import zeros_of
from gatewayd_hooks.quantization import GroupedWeight, Stored

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import Matrix

_log = logging.getLogger(__name__)

_SCALES = ("F16", "BF16")
"""With these a code's product and the sum with its offset are exact in float32."""
_BIASES = ("F16", "BF16", "F32")


@dataclass(frozen=True, slots=True)
class GptqScheme:
    """Storage layout of a GPTQ checkpoint.

    Attributes:
        bits: per code, 4 or 8.
        group_size: columns that share a scale and a zero point; -1 for all.
        is_ordered: whether ``g_idx`` is required and assigns columns to groups.
        least_zero: value of a stored zero point of 0: 1 in the first format, 0 in ``gptq_v2``.
        has_head: whether the head is packed, too.
        parts: names within a layer of the only packed matrices; empty for all.
    """

    bits: int
    group_size: int
    is_ordered: bool
    least_zero: int
    has_head: bool
    parts: tuple[str, ...]

    def stored(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]] | None:
        """See ``Scheme``: matrices of layers are packed, except routers of experts.

        Raises:
            ValueError: a matrix of its size cannot be packed.
        """
        if not self._is_packed(matrix.name):
            return None
        in_a_word = 32 // self.bits
        rows = divisible(matrix.name, matrix.rows, in_a_word, "rows")
        columns = divisible(matrix.name, matrix.columns, in_a_word, "columns")
        groups = self._groups(matrix)
        needed = {
            "scales": tuple(Stored(dtype, (groups, matrix.rows)) for dtype in _SCALES),
            "qzeros": (Stored("I32", (groups, rows)),),
            "qweight": (Stored("I32", (columns, matrix.rows)),),
        }
        return {**needed, **_order(matrix)} if self.is_ordered else needed

    def optional(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]]:
        """See ``Scheme``; writers add zero biases to matrices without a bias."""
        bias = {"bias": tuple(Stored(dtype, (matrix.rows,)) for dtype in _BIASES)}
        return bias if self.is_ordered else {**bias, **_order(matrix)}

    def weight(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> GroupedWeight:
        """Return ``(code - zero) * scale``; see ``Scheme``."""
        group_of = self._group_of(matrix, take)
        scales = finite("scales", take("scales")).t().contiguous()
        stored = _unpacked(take("qzeros"), self.bits).t()
        most = (1 << self.bits) - 1
        if self.least_zero and bool((stored == most).any()):
            _log.info(
                "%s.qzeros contains %d, which some loaders read as 0; gatewayd reads it as "
                "one more",
                matrix.name,
                most,
            )
        zeros = stored.float() + self.least_zero
        return GroupedWeight(
            codes=_unpacked(take("qweight").t(), self.bits),
            scales=scales,
            offsets=-zeros * scales,
            bits=self.bits,
            group_of=group_of,
        )

    def _is_packed(self, name: str) -> bool:
        if name == "lm_head":
            return self.has_head
        _, is_layer, inside = name.partition(".layers.")
        if not is_layer:
            return False
        inside = inside.partition(".")[2]
        if self.parts:
            return inside in self.parts
        return not weighs_experts(inside)

    def _groups(self, matrix: Matrix) -> int:
        return 1 if self.group_size == -1 else -(-matrix.columns // self.group_size)

    def _group_of(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> torch.Tensor | None:
        """Return the group of each column; None for groups of adjacent columns of one size.

        Raises:
            ValueError: there are not that many groups.
        """
        groups = self._groups(matrix)
        size = matrix.columns if self.group_size == -1 else self.group_size
        neighbours = torch.arange(matrix.columns, dtype=torch.int32) // size
        try:
            index = take("g_idx")
        except KeyError:
            # Without `desc_act` the file need not have it.
            index = neighbours
        wrong = ((index < 0) | (index >= groups)).nonzero()
        if len(wrong):
            column = int(wrong[0])
            raise ValueError(f"g_idx[{column}] is {int(index[column])}; there are {groups} groups")
        # Without an index more kernels can multiply it.
        if matrix.columns % min(size, matrix.columns) == 0 and torch.equal(index, neighbours):
            return None
        return index.contiguous()


def _order(matrix: Matrix) -> dict[str, tuple[Stored, ...]]:
    return {"g_idx": (Stored("I32", (matrix.columns,)),)}


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpack words int32 ``[n, m]`` to codes uint8 ``[n, m * 32 / bits]``, low bits first."""
    some = words.flatten().view(torch.uint8).view(len(words), -1)
    return some if bits == 8 else torch.stack((some & 15, some >> 4), -1).flatten(1)


def packed_tensors(
    matrix: Matrix, weight: GroupedWeight, group_size: int, least_zero: int
) -> dict[str, torch.Tensor]:
    """Return the tensors of a matrix; a zero point of ``least_zero`` is stored as 0.

    ``g_idx`` is always included: some readers require it.
    """
    size = matrix.columns if group_size == -1 else group_size
    group_of = weight.group_of
    if group_of is None:
        group_of = torch.arange(matrix.columns, dtype=torch.int32) // size
    zeros = zeros_of(weight) - least_zero
    return {
        "qweight": _packed(weight.codes, weight.bits).t().contiguous(),
        "qzeros": _packed(zeros.t(), weight.bits),
        "scales": weight.scales.t().half().contiguous(),
        "g_idx": group_of,
    }


def _packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Invert ``_unpacked``."""
    some = codes if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4
    return some.flatten().view(torch.int32).view(len(codes), -1)
