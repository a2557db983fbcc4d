"""Converts blocks of GGUF files to codes, scales and offsets, bit for bit.

Source: block layouts of ggml's ``ggml-common.h``, values of its ``ggml-quants.c``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from gatewayd_hooks.quantization import GroupedWeight


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
    packed = blocks[..., 2:]
    codes = torch.cat((packed & 15, packed >> 4), -1).to(torch.int8) - 8
    return GroupedWeight(codes.flatten(1), _halves(blocks, 0).flatten(1), bits=4)


def _q4_k(blocks: torch.Tensor) -> GroupedWeight:
    """Unpack two scales, of 8 scales and 8 minimums of 6 bits each, then 128 bytes of nibbles.

    The first four have their low 6 bits in separate bytes; of the others 4 bits are in the last
    bytes and 2 above those of the first four. Each 32 bytes are 32 numbers in their low nibbles and
    the next 32 in their high ones.
    """
    scales, least, rest = torch.unflatten(blocks[..., 4:16], -1, (3, 4)).unbind(-2)
    scale_codes = torch.cat((scales & 63, (rest & 15) | scales >> 6 << 4), -1)
    least_codes = torch.cat((least & 63, rest >> 4 | least >> 6 << 4), -1)
    packed = torch.unflatten(blocks[..., 16:], -1, (4, 32))
    codes = torch.stack((packed & 15, packed >> 4), -2)
    return GroupedWeight(
        codes.flatten(1),
        (_halves(blocks, 0) * scale_codes.float()).flatten(1),
        -(_halves(blocks, 2) * least_codes.float()).flatten(1),
        bits=4,
    )


def _q6_k(blocks: torch.Tensor) -> GroupedWeight:
    """Unpack low 4 bits, high 2 bits, 16 signed scales, and their scale; numbers are offset by -32.

    Of each 128 numbers the first 64 have their low bits in the low nibbles of 64 bytes, the others
    in the high ones; each fourth of them has its high bits in a quarter of the same 32 bytes.
    """
    low = torch.unflatten(blocks[..., :128], -1, (2, 64))
    high = torch.unflatten(blocks[..., 128:192], -1, (2, 32))
    low = torch.cat((low & 15, low >> 4), -1)
    high = torch.cat([high >> shift & 3 for shift in (0, 2, 4, 6)], -1)
    codes = (low | high << 4).to(torch.int8) - 32
    scales = blocks[..., 192:208].view(torch.int8).float() * _halves(blocks, 208)
    return GroupedWeight(codes.flatten(1), scales.flatten(1))


def _halves(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """Return the float16 at a byte of each block, as float32 ``[rows, blocks, 1]``."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16).float()


FORMS = {
    "Q8_0": BlockForm(32, 34, _q8_0),
    "Q4_0": BlockForm(32, 18, _q4_0),
    "Q4_K": BlockForm(256, 144, _q4_k),
    "Q6_K": BlockForm(256, 210, _q6_k),
}
