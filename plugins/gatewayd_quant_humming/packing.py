"""Packs quantized weights into the input format of humming-kernels.

Codes are unsigned, the first of a row in the lowest bits of its first word; zero points likewise,
but along the rows. A number is ``(code - zero) * scale``, or for floats ``code * scale``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from gatewayd_hooks.quantization import GroupedWeight

_WORD = 32
_BLOCK = 1 << 22
"""Codes packed at once."""


class Packed(NamedTuple):
    """Matrix in that format.

    Attributes:
        dtype: of codes, by humming's name: ``uint4``, ``float8e4m3``.
        group_size: adjacent columns that share a scale; 0 for all.
        tensors: by humming's names: ``weight`` int32 ``[rows, columns * bits / 32]``,
            ``weight_scale`` ``[rows, groups]``, and perhaps ``zero_point`` int32 ``[rows * bits /
            32, groups]`` and ``bias`` ``[rows]``.
    """

    dtype: str
    group_size: int
    tensors: dict[str, torch.Tensor]


def code_name(codes: torch.dtype, bits: int) -> str:
    """Return humming's name of a code type."""
    return "float8e4m3" if codes.is_floating_point else f"uint{bits}"


def packed(weight: GroupedWeight, bias: torch.Tensor | None, dtype: torch.dtype) -> Packed | None:
    """Pack a matrix; None if a zero point is not an integer.

    Args:
        weight: with groups of adjacent columns; rows and columns are multiples of 32.
        bias: of type ``dtype``.
        dtype: of scales and of inputs.
    """
    codes, bits, groups = weight.codes, weight.bits, weight.scales.shape[1]
    tensors = {"weight_scale": weight.scales.to(dtype)}
    if codes.dtype.is_floating_point:
        tensors["weight"] = codes.contiguous().view(torch.int32)
    else:
        middle = 1 << (bits - 1)
        zeros = _zeros(weight, middle)
        if zeros is None:
            return None
        # Made unsigned; for 8 bits, flipping the sign bit adds 128 without a wider type.
        if codes.dtype == torch.int8:
            codes = (codes + middle).to(torch.uint8) if bits < 8 else codes.view(torch.uint8) ^ 128
        tensors["weight"] = pack(codes, bits)
        if not (zeros == middle).all():
            tensors["zero_point"] = pack(zeros.t().contiguous(), bits).t().contiguous()
    if bias is not None:
        tensors["bias"] = bias
    group_size = 0 if groups == 1 else codes.shape[1] // groups
    return Packed(code_name(weight.codes.dtype, bits), group_size, tensors)


def _zeros(weight: GroupedWeight, middle: int) -> torch.Tensor | None:
    """Return the zero point of each group, uint8 ``[rows, groups]``; None if one is no integer."""
    scales, offsets = weight.scales, weight.offsets
    first = middle if weight.codes.dtype == torch.int8 else 0
    if offsets is None:
        return torch.full_like(scales, first, dtype=torch.uint8)
    # A group of zeros has no zero point.
    zeros = torch.where(scales == 0, 0.0, -offsets / scales).round()
    # Exactly equal, or the kernel would multiply another matrix.
    if not torch.equal(-zeros * scales, offsets):
        return None
    zeros += first
    if not ((zeros >= 0) & (zeros < 2 * middle)).all():
        return None
    return zeros.to(torch.uint8)


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack codes uint8 ``[n, k]`` into int32 words ``[n, k * bits / 32]``.

    Args:
        codes: ``k`` is a multiple of 32.
        bits: per code.
    """
    words = codes.new_empty((len(codes), codes.shape[1] * bits // _WORD), dtype=torch.int32)
    step = max(1, _BLOCK // codes.shape[1])
    for begin in range(0, len(codes), step):
        some = slice(begin, begin + step)
        apart = torch.unflatten(codes[some].to(torch.int32), 1, (-1, _WORD))
        made = apart.new_zeros((*apart.shape[:2], bits))
        # 32 codes fill `bits` words, in which a code may straddle two.
        for place in range(_WORD):
            word, shift = divmod(place * bits, _WORD)
            made[..., word] |= apart[..., place] << shift
            if shift + bits > _WORD:
                made[..., word + 1] |= apart[..., place] >> (_WORD - shift)
        words[some] = made.flatten(1)
    return words
