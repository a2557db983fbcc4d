"""GGUF blocks: naive quantization, and their meaning.

``number`` is the published formula of each type for one number of a block: the measure for what
unpacks whole rows at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

BLOCKS = {"Q8_0": (32, 34), "Q4_0": (32, 18), "Q4_K": (256, 144), "Q6_K": (256, 210)}
"""Numbers and bytes of a block."""
HALVES = {"Q8_0": (0,), "Q4_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
"""Where float16 are in a block."""


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


def _put_q4_k(made: Any, blocks: Any) -> None:
    groups = blocks.reshape(-1, 8, 32)
    least, most = np.minimum(groups.min(2), 0), groups.max(2)
    d, dmin = _half((most - least).max(1) / 15 / 63), _half(-least.min(1) / 63)
    scales = np.rint((most - least) / 15 / d).clip(1, 63).astype(np.uint8)
    mins = np.rint(-least / dmin).clip(0, 63).astype(np.uint8)
    _put_half(made, 0, d)
    _put_half(made, 2, dmin)
    for j in range(4):
        made[:, 4 + j] = scales[:, j] | scales[:, 4 + j] >> 4 << 6
        made[:, 8 + j] = mins[:, j] | mins[:, 4 + j] >> 4 << 6
        made[:, 12 + j] = scales[:, 4 + j] & 15 | (mins[:, 4 + j] & 15) << 4
    for j in range(8):
        step, lowest = d * scales[:, j, None], dmin * mins[:, j, None]
        codes = np.rint((groups[:, j] + lowest) / step).clip(0, 15).astype(np.uint8)
        at = 16 + 32 * (j // 2)
        made[:, at : at + 32] |= codes << 4 * (j % 2)


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


_PUT = {"Q8_0": _put_q8_0, "Q4_0": _put_q4_0, "Q4_K": _put_q4_k, "Q6_K": _put_q6_k}


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
    if kind == "Q4_K":
        j, s = i // 32, block[4:16]
        if j < 4:
            scale, least = s[j] & 63, s[j + 4] & 63
        else:
            scale = s[j + 4] & 15 | s[j - 4] >> 6 << 4
            least = s[j + 4] >> 4 | s[j] >> 6 << 4
        code = block[16 + 32 * (j // 2) + i % 32] >> 4 * (j % 2) & 15
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
