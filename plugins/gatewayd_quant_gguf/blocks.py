"""Converts blocks of GGUF files to codes, scales and offsets, bit for bit.

Source: block layouts of ggml's ``ggml-common.h``, values of its ``ggml-quants.c``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from gatewayd_hooks.helpers.float4 import DOUBLED, NAN_EXPONENT, halved_scales
from gatewayd_hooks.quantization import GroupedWeight

_LEVELS = torch.tensor(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=torch.int8
)
"""Levels of IQ4_NL and IQ4_XS, which are closer to each other around zero."""

_FLOATS = torch.tensor(DOUBLED, dtype=torch.int8)
"""Twice the 4-bit floats of MXFP4."""


class BlockForm(NamedTuple):
    """Block type: its numbers and bytes, and how to unpack uint8 ``[rows, blocks, nbytes]``."""

    columns: int
    nbytes: int
    unpack: Callable[[torch.Tensor], GroupedWeight]


def _q8_0(blocks: torch.Tensor) -> GroupedWeight:
    """Unpack a scale, then 32 signed bytes."""
    codes = blocks[..., 2:].view(torch.int8)
    return GroupedWeight(codes.flatten(1), _halves(blocks, 0).flatten(1))


def _q4_0(blocks: torch.Tensor) -> GroupedWeight:
    """Unpack a scale, then 16 bytes: their low nibbles are the first 16 numbers, offset by -8."""
    codes = _nibbles(blocks[..., 2:]).to(torch.int8) - 8
    return GroupedWeight(codes.flatten(1), _halves(blocks, 0).flatten(1), bits=4)


def _q4_1(blocks: torch.Tensor) -> GroupedWeight:
    """Unpack a scale and an offset, then 16 bytes as in Q4_0, without its offset."""
    codes = _nibbles(blocks[..., 4:])
    scales, offsets = _halves(blocks, 0), _halves(blocks, 2)
    return GroupedWeight(codes.flatten(1), scales.flatten(1), offsets.flatten(1), bits=4)


def _q5_0(blocks: torch.Tensor) -> GroupedWeight:
    """Unpack a scale, 32 fifth bits, and 16 bytes as in Q4_0; numbers are offset by -16."""
    codes = _nibbles(blocks[..., 6:]) | _bits(blocks[..., 2:6]) << 4
    return GroupedWeight((codes.to(torch.int8) - 16).flatten(1), _halves(blocks, 0).flatten(1))


def _q5_1(blocks: torch.Tensor) -> GroupedWeight:
    """Unpack a scale and an offset, 32 fifth bits, and 16 bytes as in Q4_0."""
    codes = _nibbles(blocks[..., 8:]) | _bits(blocks[..., 4:8]) << 4
    scales, offsets = _halves(blocks, 0), _halves(blocks, 2)
    return GroupedWeight(codes.to(torch.int8).flatten(1), scales.flatten(1), offsets.flatten(1))


def _q2_k(blocks: torch.Tensor) -> GroupedWeight:
    """Unpack 16 bytes of a scale and a minimum each, 64 of 4 codes each, and their two scales."""
    factors = blocks[..., :16]
    return GroupedWeight(
        _crumbs(blocks[..., 16:80]).flatten(1),
        (_halves(blocks, 80) * (factors & 15).float()).flatten(1),
        -(_halves(blocks, 82) * (factors >> 4).float()).flatten(1),
        bits=4,
    )


def _q3_k(blocks: torch.Tensor) -> GroupedWeight:
    """Unpack 32 bytes of third bits, 64 of low 2 bits, 16 scales of 6 bits, and their scale.

    A third bit is of number ``32 * bit + byte``; without it 4 is subtracted. The scales' low 4 bits
    are in the nibbles of 8 bytes, their high 2 bits in 4 bytes; they are offset by -32.
    """
    third = torch.stack([blocks[..., :32] >> bit & 1 for bit in range(8)], -2).flatten(-2)
    codes = (_crumbs(blocks[..., 32:96]) | third << 2).to(torch.int8) - 4
    high = torch.cat([blocks[..., 104:108] >> shift & 3 for shift in (0, 2, 4, 6)], -1)
    scale_codes = (_nibbles(blocks[..., 96:104]) | high << 4).to(torch.int8) - 32
    scales = _halves(blocks, 108) * scale_codes.float()
    return GroupedWeight(codes.flatten(1), scales.flatten(1), bits=4)


def _q4_k(blocks: torch.Tensor) -> GroupedWeight:
    """Unpack two scales, 8 scales and 8 minimums, then 128 bytes of nibbles.

    Each 32 bytes are 32 numbers in their low nibbles and the next 32 in their high ones.
    """
    codes = _nibbles(torch.unflatten(blocks[..., 16:], -1, (4, 32)))
    return GroupedWeight(codes.flatten(1), *_of_six_bits(blocks), bits=4)


def _q5_k(blocks: torch.Tensor) -> GroupedWeight:
    """Unpack two scales, 8 scales and 8 minimums, 32 bytes of fifth bits, and nibbles as in Q4_K.

    A fifth bit is of number ``32 * bit + byte``.
    """
    fifth = torch.stack([blocks[..., 16:48] >> bit & 1 for bit in range(8)], -2).flatten(-2)
    low = _nibbles(torch.unflatten(blocks[..., 48:], -1, (4, 32))).flatten(-2)
    codes = (low | fifth << 4).to(torch.int8)
    return GroupedWeight(codes.flatten(1), *_of_six_bits(blocks))


def _q6_k(blocks: torch.Tensor) -> GroupedWeight:
    """Unpack low 4 bits, high 2 bits, 16 signed scales, and their scale; numbers are offset by -32.

    Of each 128 numbers the first 64 have their low bits in the low nibbles of 64 bytes, the others
    in the high ones; each fourth of them has its high bits in a quarter of the same 32 bytes.
    """
    low = torch.unflatten(blocks[..., :128], -1, (2, 64))
    high = torch.unflatten(blocks[..., 128:192], -1, (2, 32))
    low = _nibbles(low)
    high = torch.cat([high >> shift & 3 for shift in (0, 2, 4, 6)], -1)
    codes = (low | high << 4).to(torch.int8) - 32
    scales = blocks[..., 192:208].view(torch.int8).float() * _halves(blocks, 208)
    return GroupedWeight(codes.flatten(1), scales.flatten(1))


def _iq4_nl(blocks: torch.Tensor) -> GroupedWeight:
    """Unpack a scale, then 16 bytes as in Q4_0, whose nibbles are indices of ``_LEVELS``."""
    codes = _levels(_nibbles(blocks[..., 2:]))
    return GroupedWeight(codes.flatten(1), _halves(blocks, 0).flatten(1))


def _iq4_xs(blocks: torch.Tensor) -> GroupedWeight:
    """Unpack a scale, 8 scales of 6 bits, and 128 bytes, of which each 16 are as in IQ4_NL.

    The scales' high 2 bits are in 2 bytes, their low 4 bits in the nibbles of 4, the first in the
    low one; they are offset by -32.
    """
    high = torch.stack([blocks[..., 2 + i // 4] >> 2 * (i % 4) & 3 for i in range(8)], -1)
    low = torch.stack((blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4), -1).flatten(-2)
    scales = _halves(blocks, 0) * ((low | high << 4).to(torch.int8) - 32).float()
    codes = _levels(_nibbles(torch.unflatten(blocks[..., 8:], -1, (8, 16))))
    return GroupedWeight(codes.flatten(1), scales.flatten(1))


def _mxfp4(blocks: torch.Tensor) -> GroupedWeight:
    """Unpack an exponent, then 16 bytes as in Q4_0, whose nibbles are indices of ``_FLOATS``."""
    exponents = blocks[..., 0]
    scales = halved_scales(exponents).masked_fill_(exponents == NAN_EXPONENT, float("nan"))
    return GroupedWeight(_FLOATS[_nibbles(blocks[..., 1:]).int()].flatten(1), scales)


def _of_six_bits(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Unpack the factors of Q4_K and Q5_K: 8 scales and 8 minimums of 6 bits, and their scales.

    The first four have their low 6 bits in separate bytes; of the others 4 bits are in the last
    bytes and 2 above those of the first four.
    """
    scales, least, rest = torch.unflatten(blocks[..., 4:16], -1, (3, 4)).unbind(-2)
    scale_codes = torch.cat((scales & 63, (rest & 15) | scales >> 6 << 4), -1)
    least_codes = torch.cat((least & 63, rest >> 4 | least >> 6 << 4), -1)
    return (
        (_halves(blocks, 0) * scale_codes.float()).flatten(1),
        -(_halves(blocks, 2) * least_codes.float()).flatten(1),
    )


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Return the low nibbles of all bytes, then the high ones."""
    return torch.cat((packed & 15, packed >> 4), -1)


def _crumbs(packed: torch.Tensor) -> torch.Tensor:
    """Return 256 codes of 2 bits: of each 32 bytes the lowest bits, then the next ones."""
    halves = torch.unflatten(packed, -1, (2, 1, 32))
    return torch.cat([halves >> shift & 3 for shift in (0, 2, 4, 6)], -2).flatten(-3)


def _bits(packed: torch.Tensor) -> torch.Tensor:
    """Return the bits of 4 bytes, the lowest of the first byte first."""
    return torch.stack([packed >> bit & 1 for bit in range(8)], -1).flatten(-2)


def _levels(indices: torch.Tensor) -> torch.Tensor:
    return _LEVELS[indices.int()]


def _halves(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """Return the float16 at a byte of each block, as float32 ``[rows, blocks, 1]``."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16).float()


FORMS = {
    "Q8_0": BlockForm(32, 34, _q8_0),
    "Q4_0": BlockForm(32, 18, _q4_0),
    "Q4_1": BlockForm(32, 20, _q4_1),
    "Q5_0": BlockForm(32, 22, _q5_0),
    "Q5_1": BlockForm(32, 24, _q5_1),
    "Q2_K": BlockForm(256, 84, _q2_k),
    "Q3_K": BlockForm(256, 110, _q3_k),
    "Q4_K": BlockForm(256, 144, _q4_k),
    "Q5_K": BlockForm(256, 176, _q5_k),
    "Q6_K": BlockForm(256, 210, _q6_k),
    "IQ4_NL": BlockForm(32, 18, _iq4_nl),
    "IQ4_XS": BlockForm(256, 136, _iq4_xs),
    "MXFP4": BlockForm(32, 17, _mxfp4),
}
