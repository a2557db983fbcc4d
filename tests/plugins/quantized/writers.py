"""Naive writers of every format: round, then pack element by element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tests.plugins.quantized.format_cases import CASES

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_IN_ORDER = tuple(range(8))


class Writer(NamedTuple):
    """Writes matrices in one format.

    Attributes:
        announced: what a checkpoint says of it.
        write: of a matrix, its tensors and the numbers that they mean.
    """

    announced: Mapping[str, Any]
    write: Callable[[Floats], tuple[dict[str, torch.Tensor], Floats]]

    @property
    def method(self) -> str:
        """The strategy that reads it."""
        return str(self.announced["quant_method"]).replace("-", "_")


def _words(codes: Ints, bits: int, order: tuple[int, ...]) -> torch.Tensor:
    """Neighbours in the last dimension in words of 32 bits; ``order`` says which is where."""
    many = 32 // bits
    words = np.zeros((*codes.shape[:-1], codes.shape[-1] // many), np.uint32)
    for place in range(many):
        words |= codes[..., order[place] :: many].astype(np.uint32) << np.uint32(bits * place)
    return torch.from_numpy(words.view(np.int32))


def _rounded(
    weight: Floats, size: int, bits: int, group_of: Ints
) -> tuple[Ints, Ints, Floats, Floats]:
    """Codes, zeros ``[rows, groups]``, scales in float16, and what they mean."""
    groups = weight.shape[1] // size
    codes = np.zeros(weight.shape, np.int64)
    zeros = np.zeros((len(weight), groups), np.int64)
    scales = np.zeros((len(weight), groups), np.float32)
    meant = np.zeros_like(weight)
    most = (1 << bits) - 1
    for group in range(groups):
        columns = group_of == group
        part = weight[:, columns]
        least, greatest = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        scale = np.maximum((greatest - least) / most, 1e-4).astype(np.float16).astype(np.float32)
        zero = np.clip(np.round(-least / scale), 1, most - 1).astype(np.int64)
        code = np.clip(np.round(part / scale[:, None]) + zero[:, None], 0, most).astype(np.int64)
        codes[:, columns], zeros[:, group], scales[:, group] = code, zero, scale
        meant[:, columns] = (code - zero[:, None]) * scale[:, None].astype(np.float64)
    return codes, zeros, scales, meant


def _half(scales: Floats) -> torch.Tensor:
    return torch.from_numpy(scales).half()


def _awq(weight: Floats) -> tuple[dict[str, torch.Tensor], Floats]:
    codes, zeros, scales, meant = _rounded(weight, 32, 4, np.arange(weight.shape[1]) // 32)
    tensors = {
        "qweight": _words(codes.T, 4, _AWQ_ORDER),
        "qzeros": _words(zeros.T, 4, _AWQ_ORDER),
        "scales": _half(scales.T.copy()),
    }
    return tensors, meant


def _gptq(weight: Floats, bits: int, size: int, first: int, order: bool) -> Any:
    columns = weight.shape[1]
    size = columns if size == -1 else size
    group_of = np.arange(columns) // size
    if order:
        group_of = np.random.default_rng(columns).permutation(group_of)
    codes, zeros, scales, meant = _rounded(weight, size, bits, group_of)
    tensors = {
        "qweight": _words(codes, bits, _IN_ORDER).T.contiguous(),
        "qzeros": _words((zeros - first).T, bits, _IN_ORDER),
        "scales": _half(scales.T.copy()),
    }
    if order:
        tensors["g_idx"] = torch.from_numpy(group_of.astype(np.int32))
    return tensors, meant


def _packed(weight: Floats) -> tuple[dict[str, torch.Tensor], Floats]:
    codes, zeros, scales, meant = _rounded(weight, 32, 4, np.arange(weight.shape[1]) // 32)
    tensors = {
        "weight_packed": _words(codes, 4, _IN_ORDER),
        "weight_scale": _half(scales),
        "weight_zero_point": _words(zeros.T, 4, _IN_ORDER).T.contiguous(),
        "weight_shape": torch.tensor(weight.shape),
    }
    return tensors, meant


def _integers(weight: Floats) -> tuple[dict[str, torch.Tensor], Floats]:
    scales = torch.from_numpy(np.abs(weight).max(1, keepdims=True) / 127).bfloat16()
    codes = np.clip(np.round(weight / scales.float().numpy()), -128, 127).astype(np.int8)
    tensors = {"weight": torch.from_numpy(codes), "weight_scale": scales}
    return tensors, codes * scales.float().numpy()


def _floats(weight: Floats, suffix: str, rows: int, columns: int) -> Any:
    """With a scale for each block of rows and columns, 0 for all."""
    tall, wide = rows or len(weight), columns or weight.shape[1]
    meant = np.zeros_like(weight)
    codes = torch.zeros(weight.shape, dtype=torch.float8_e4m3fn)
    shape = -(-weight.shape[0] // tall), -(-weight.shape[1] // wide)
    scales = np.zeros(shape, np.float32)
    for row in range(shape[0]):
        for column in range(shape[1]):
            at = slice(row * tall, (row + 1) * tall), slice(column * wide, (column + 1) * wide)
            scales[row, column] = np.abs(weight[at]).max() / 448
            codes[at] = torch.from_numpy(weight[at] / scales[row, column]).to(torch.float8_e4m3fn)
            meant[at] = codes[at].float().numpy() * scales[row, column]
    return {"weight": codes, suffix: torch.from_numpy(scales if rows else scales[:, 0])}, meant


def _nvfp4(weight: Floats) -> tuple[dict[str, torch.Tensor], Floats]:
    sizes = np.array((0, 0.5, 1, 1.5, 2, 3, 4, 6), np.float32)
    whole = np.float32(448 * 6 / np.abs(weight).max())
    groups = weight.reshape(len(weight), -1, 16)
    stored = torch.from_numpy(np.abs(groups).max(-1) / 6 * whole).to(torch.float8_e4m3fn)
    scales = np.maximum(stored.float().numpy() / whole, np.float32(1e-12))[..., None]
    nearest = np.abs(np.abs(groups / scales)[..., None] - sizes).argmin(-1)
    codes = (nearest + 8 * (groups < 0)).reshape(weight.shape)
    meant = np.sign(groups) * sizes[nearest] * scales
    tensors = {
        "weight_packed": torch.from_numpy((codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)),
        "weight_scale": stored,
        "weight_global_scale": torch.tensor([whole]),
    }
    return tensors, meant.reshape(weight.shape)


WRITERS = {
    "awq": Writer(CASES["awq"].announced, _awq),
    "gptq": Writer(CASES["gptq"].announced, lambda w: _gptq(w, 4, 32, 1, False)),
    "gptq_v2 with an order": Writer(
        CASES["gptq_v2 with an order"].announced, lambda w: _gptq(w, 4, 32, 0, True)
    ),
    "gptq of 8 bits, a group of a row": Writer(
        CASES["gptq of 8 bits, a group of a row"].announced, lambda w: _gptq(w, 8, -1, 1, False)
    ),
    "packed with zeros": Writer(CASES["packed with zeros"].announced, _packed),
    "integers": Writer(CASES["integers"].announced, _integers),
    "floats, one scale": Writer(
        CASES["floats, one scale"].announced, lambda w: _floats(w, "weight_scale", 0, 0)
    ),
    "floats of 4 bits": Writer(CASES["floats of 4 bits"].announced, _nvfp4),
    "fp8 in blocks": Writer(
        {**CASES["fp8 in blocks"].announced, "weight_block_size": [128, 128]},
        lambda w: _floats(w, "weight_scale_inv", 128, 128),
    ),
}
