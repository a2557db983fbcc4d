"""GGUF blocks: naive quantization, and their meaning.

``number`` is the published formula of each type for one number of a block: the measure for what
unpacks whole rows at once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

BLOCKS = {
    "Q8_0": (32, 34), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24),
    "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176),
    "Q6_K": (256, 210), "IQ4_NL": (32, 18), "IQ4_XS": (256, 136),
    "MXFP4": (32, 17),
}  # fmt: skip
"""Numbers and bytes of a block."""
HALVES = {
    "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
    "MXFP4": (),
}  # fmt: skip
"""Where float16 are in a block."""
LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
"""Of IQ4_NL and IQ4_XS."""
FLOATS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""Of MXFP4."""


def packed(kind: str, weight: torch.Tensor) -> bytes:
    """A matrix, roughly rounded, in blocks of a type; floats as they are."""
    if kind in ("F32", "F16"):
        return weight.numpy().astype("<f4" if kind == "F32" else "<f2").tobytes()
    if kind == "BF16":
        return weight.bfloat16().view(torch.int16).numpy().tobytes()
    columns, nbytes = BLOCKS[kind]
    blocks = weight.numpy().reshape(-1, columns)
    made = np.zeros((len(blocks), nbytes), np.uint8)
    _PUT[kind](made, blocks)
    return made.tobytes()


def _half(numbers: Any) -> Any:
    return np.maximum(numbers, 1e-6).astype(np.float16).astype(np.float32)[:, None]


def _put_half(made: Any, at: int, numbers: Any) -> None:
    made[:, at : at + 2] = numbers.astype("<f2").view(np.uint8)


def _put_q8_0(made: Any, blocks: Any) -> None:
    scales = _half(np.abs(blocks).max(1) / 127)
    _put_half(made, 0, scales)
    made[:, 2:] = np.rint(blocks / scales).clip(-127, 127).astype(np.int8).view(np.uint8)


def _put_q4_0(made: Any, blocks: Any) -> None:
    scales = _half(np.abs(blocks).max(1) / 7)
    codes = (np.rint(blocks / scales).clip(-7, 7) + 8).astype(np.uint8)
    _put_half(made, 0, scales)
    made[:, 2:] = codes[:, :16] | codes[:, 16:] << 4


def _put_32(made: Any, blocks: Any, *, bits: int, has_offset: bool) -> None:
    """Q4_1, Q5_0 and Q5_1."""
    top = (1 << bits) - 1
    if has_offset:
        low = blocks.min(1).astype(np.float16).astype(np.float32)[:, None]
        scales = _half((blocks.max(1) - low[:, 0]) / top)
        _put_half(made, 2, low)
    else:
        scales = _half(np.abs(blocks).max(1) / (top // 2))
        low = -scales * (top // 2 + 1)
    _put_half(made, 0, scales)
    codes = np.rint((blocks - low) / scales).clip(0, top).astype(np.uint8)
    made[:, -16:] = codes[:, :16] & 15 | (codes[:, 16:] & 15) << 4
    if bits == 5:
        at = made.shape[1] - 20
        made[:, at : at + 4] = np.packbits(codes >> 4, axis=1, bitorder="little")


def _put_q2_k(made: Any, blocks: Any) -> None:
    groups = blocks.reshape(-1, 16, 16)
    least, most = np.minimum(groups.min(2), 0), groups.max(2)
    d, dmin = _half((most - least).max(1) / 3 / 15), _half(-least.min(1) / 15)
    scales = np.rint((most - least) / 3 / d).clip(1, 15)
    mins = np.rint(-least / dmin).clip(0, 15)
    _put_half(made, 80, d)
    _put_half(made, 82, dmin)
    made[:, :16] = scales.astype(np.uint8) | mins.astype(np.uint8) << 4
    whole = (blocks + (dmin * mins).repeat(16, 1)) / (d * scales).repeat(16, 1)
    _put_crumbs(made[:, 16:80], np.rint(whole).clip(0, 3).astype(np.uint8))


def _put_q3_k(made: Any, blocks: Any) -> None:
    most = np.abs(blocks.reshape(-1, 16, 16)).max(2) / 4
    d = _half(most.max(1) / 31)
    scales = np.rint(most / d).clip(1, 31)
    codes = np.rint(blocks / (d * scales).repeat(16, 1)).clip(-4, 3).astype(np.int8) + 4
    for i, code in enumerate(codes.astype(np.uint8).T):
        made[:, i % 32] |= code >> 2 << i // 32
    _put_crumbs(made[:, 32:96], codes.astype(np.uint8) & 3)
    for i, scale in enumerate((scales + 32).astype(np.uint8).T):
        made[:, 96 + i % 8] |= (scale & 15) << 4 * (i // 8)
        made[:, 104 + i % 4] |= scale >> 4 << 2 * (i // 4)
    _put_half(made, 108, d)


def _put_crumbs(made: Any, codes: Any) -> None:
    for i, code in enumerate(codes.T):
        made[:, 32 * (i // 128) + i % 32] |= code << 2 * (i // 32 % 4)


def _put_iq4_nl(made: Any, blocks: Any) -> None:
    d = _half(np.abs(blocks).max(1) / 127)
    _put_half(made, 0, d)
    codes = _nearest_level(blocks / d)
    made[:, 2:] = codes[:, :16] | codes[:, 16:] << 4


def _put_iq4_xs(made: Any, blocks: Any) -> None:
    groups = blocks.reshape(-1, 8, 32)
    most = np.abs(groups).max(2) / 127
    d = _half(most.max(1) / 31)
    _put_half(made, 0, d)
    scales = np.rint(most / d).clip(1, 31)
    for i, scale in enumerate((scales + 32).astype(np.uint8).T):
        made[:, 4 + i // 2] |= (scale & 15) << 4 * (i % 2)
        made[:, 2 + i // 4] |= scale >> 4 << 2 * (i % 4)
        codes = _nearest_level(groups[:, i] / (d * scales[:, i, None]))
        made[:, 8 + 16 * i : 24 + 16 * i] = codes[:, :16] | codes[:, 16:] << 4


def _nearest_level(numbers: Any) -> Any:
    return np.abs(numbers[..., None] - LEVELS).argmin(-1).astype(np.uint8)


def _put_q4_k(made: Any, blocks: Any, bits: int = 4) -> None:
    top = (1 << bits) - 1
    groups = blocks.reshape(-1, 8, 32)
    least, most = np.minimum(groups.min(2), 0), groups.max(2)
    d, dmin = _half((most - least).max(1) / top / 63), _half(-least.min(1) / 63)
    scales = np.rint((most - least) / top / d).clip(1, 63).astype(np.uint8)
    mins = np.rint(-least / dmin).clip(0, 63).astype(np.uint8)
    _put_half(made, 0, d)
    _put_half(made, 2, dmin)
    for j in range(4):
        made[:, 4 + j] = scales[:, j] | scales[:, 4 + j] >> 4 << 6
        made[:, 8 + j] = mins[:, j] | mins[:, 4 + j] >> 4 << 6
        made[:, 12 + j] = scales[:, 4 + j] & 15 | (mins[:, 4 + j] & 15) << 4
    for j in range(8):
        step, lowest = d * scales[:, j, None], dmin * mins[:, j, None]
        codes = np.rint((groups[:, j] + lowest) / step).clip(0, top).astype(np.uint8)
        at = made.shape[1] - 128 + 32 * (j // 2)
        made[:, at : at + 32] |= (codes & 15) << 4 * (j % 2)
        if bits == 5:
            made[:, 16:48] |= codes >> 4 << j


def _put_q6_k(made: Any, blocks: Any) -> None:
    most = np.abs(blocks.reshape(-1, 16, 16)).max(2) / 31
    d = _half(most.max(1) / 127)
    scales = np.rint(most / d).clip(1, 127)
    codes = np.rint(blocks / (d * scales).repeat(16, 1)).clip(-32, 31) + 32
    for i, code in enumerate(codes.astype(np.uint8).T):
        side, t, j = i // 128, i // 32 % 4, i % 32
        made[:, 64 * side + j + 32 * (t & 1)] |= (code & 15) << 4 * (t >> 1)
        made[:, 128 + 32 * side + j] |= code >> 4 << 2 * t
    made[:, 192:208] = scales.astype(np.int8).view(np.uint8)
    _put_half(made, 208, d)


def _put_mxfp4(made: Any, blocks: Any) -> None:
    exponents = np.ceil(np.log2(np.maximum(np.abs(blocks).max(1), 1e-6) / 6))
    scaled = blocks / np.exp2(exponents)[:, None]
    codes = np.abs(scaled[..., None] - FLOATS).argmin(-1).astype(np.uint8)
    made[:, 0] = exponents + 127
    made[:, 1:] = codes[:, :16] | codes[:, 16:] << 4


_PUT: dict[str, Any] = {
    "Q8_0": _put_q8_0,
    "Q4_0": _put_q4_0,
    "Q4_1": partial(_put_32, bits=4, has_offset=True),
    "Q5_0": partial(_put_32, bits=5, has_offset=False),
    "Q5_1": partial(_put_32, bits=5, has_offset=True),
    "Q2_K": _put_q2_k,
    "Q3_K": _put_q3_k,
    "Q4_K": _put_q4_k,
    "Q5_K": partial(_put_q4_k, bits=5),
    "Q6_K": _put_q6_k,
    "IQ4_NL": _put_iq4_nl,
    "IQ4_XS": _put_iq4_xs,
    "MXFP4": _put_mxfp4,
}


def number(kind: str, raw: Any, i: int) -> Any:
    """The number ``i`` of each of some blocks, uint8 ``[blocks, bytes]``."""
    block = raw.T.astype(np.int32)

    def half(at: int) -> Any:
        return raw[:, at : at + 2].copy().view("<f2")[:, 0].astype(np.float32)

    def signed(at: int) -> Any:
        return np.where(block[at] > 127, block[at] - 256, block[at]).astype(np.float32)

    if kind == "Q8_0":
        return half(0) * signed(2 + i)
    if kind == "Q4_0":
        return half(0) * ((block[2 + i % 16] >> 4 * (i // 16) & 15) - 8).astype(np.float32)
    nibble = block[-16 + i % 16] >> 4 * (i // 16 & 1) & 15  # of types with 32 numbers
    if kind == "Q4_1":
        return half(0) * nibble.astype(np.float32) + half(2)
    if kind in ("Q5_0", "Q5_1"):
        code = nibble | (block[len(block) - 20 + i // 8] >> i % 8 & 1) << 4
        if kind == "Q5_0":
            return half(0) * (code - 16).astype(np.float32)
        return half(0) * code.astype(np.float32) + half(2)
    if kind == "MXFP4":
        return np.ldexp(FLOATS[nibble], block[0] - 127)
    if kind == "IQ4_NL":
        return half(0) * LEVELS[nibble].astype(np.float32)
    if kind == "IQ4_XS":
        j = i // 32
        scale = (block[4 + j // 2] >> 4 * (j % 2) & 15) | (
            block[2 + j // 4] >> 2 * (j % 4) & 3
        ) << 4
        level = LEVELS[block[8 + 16 * j + i % 16] >> 4 * (i % 32 // 16) & 15]
        return half(0) * (scale - 32).astype(np.float32) * level.astype(np.float32)
    if kind in ("Q2_K", "Q3_K"):
        crumb = block[(16 if kind == "Q2_K" else 32) + 32 * (i // 128) + i % 32]
        code, j = crumb >> 2 * (i // 32 % 4) & 3, i // 16
        if kind == "Q2_K":
            product = half(80) * (block[j] & 15).astype(np.float32) * code.astype(np.float32)
            return product - half(82) * (block[j] >> 4).astype(np.float32)
        code -= np.where(block[i % 32] >> i // 32 & 1, 0, 4)
        scale = (block[96 + j % 8] >> 4 * (j // 8) & 15) | (
            block[104 + j % 4] >> 2 * (j // 4) & 3
        ) << 4
        return half(108) * (scale - 32).astype(np.float32) * code.astype(np.float32)
    if kind in ("Q4_K", "Q5_K"):
        j, s = i // 32, block[4:16]
        if j < 4:
            scale, least = s[j] & 63, s[j + 4] & 63
        else:
            scale = s[j + 4] & 15 | s[j - 4] >> 6 << 4
            least = s[j + 4] >> 4 | s[j] >> 6 << 4
        code = block[len(block) - 128 + 32 * (j // 2) + i % 32] >> 4 * (j % 2) & 15
        if kind == "Q5_K":
            code = code | (block[16 + i % 32] >> j & 1) << 4
        product = half(0) * scale.astype(np.float32) * code.astype(np.float32)
        return product - half(2) * least.astype(np.float32)
    side, t, j = i // 128, i // 32 % 4, i % 32
    low = block[64 * side + j + 32 * (t & 1)] >> 4 * (t >> 1) & 15
    high = block[128 + 32 * side + j] >> 2 * t & 3
    return half(208) * signed(192 + i // 16) * ((low | high << 4) - 32).astype(np.float32)


def meant(kind: str, data: bytes, shape: tuple[int, ...]) -> torch.Tensor:
    """The numbers of a tensor, one number of the blocks after the other."""
    if kind not in BLOCKS:
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
        return torch.frombuffer(bytearray(data), dtype=dtype).float().reshape(shape)
    columns, nbytes = BLOCKS[kind]
    blocks = np.frombuffer(data, np.uint8).reshape(-1, nbytes)
    numbers = np.stack([number(kind, blocks, i) for i in range(columns)], 1)
    return torch.from_numpy(numbers).reshape(shape)
