"""Formulas of each format, element by element, from papers and reference code."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.plugins.quantized.format_cases import Case

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column that each nibble of a word holds, from the low end."""


def meant(case: Case, tensors: dict[str, torch.Tensor], rows: int, columns: int) -> torch.Tensor:
    """The numbers of a matrix, float32, shape ``[rows, columns]``."""
    lists = {suffix: _listed(tensor) for suffix, tensor in tensors.items()}
    element = {"awq": _awq, "gptq": _gptq, "compressed_tensors": _compressed, "fp8": _fp8}[
        case.method
    ]
    numbers = [
        # Exact in double precision, and rounded once.
        [
            np.float32(element(case.announced, lists, row, column, columns))
            for column in range(columns)
        ]
        for row in range(rows)
    ]
    return torch.from_numpy(np.array(numbers))


def _listed(tensor: torch.Tensor) -> Any:
    if tensor.dtype == torch.float8_e4m3fn:
        return [[_e4m3(bits) for bits in row] for row in tensor.view(torch.uint8).tolist()]
    return tensor.tolist()


def _e4m3(bits: int) -> float:
    sign, exponent, fraction = -1 if bits >> 7 else 1, bits >> 3 & 15, bits & 7
    if exponent == 0:
        return sign * fraction * 2.0**-9
    return sign * (8 + fraction) * 2.0 ** (exponent - 10)


def _bits(word: int, place: int, bits: int) -> int:
    return (word & 0xFFFFFFFF) >> bits * place & (1 << bits) - 1


def _awq(config: Any, t: Any, row: int, column: int, columns: int) -> Any:
    place = _AWQ_ORDER.index(row % 8)
    size = columns if config["group_size"] == -1 else config["group_size"]
    code = _bits(t["qweight"][column][row // 8], place, 4)
    zero = _bits(t["qzeros"][column // size][row // 8], place, 4)
    return (code - zero) * float(t["scales"][column // size][row])


def _gptq(config: Any, t: Any, row: int, column: int, columns: int) -> Any:
    bits = config["bits"]
    many = 32 // bits
    size = columns if config["group_size"] == -1 else config["group_size"]
    group = t["g_idx"][column] if "g_idx" in t else column // size
    code = _bits(t["qweight"][column // many][row], column % many, bits)
    zero = _bits(t["qzeros"][group][row // many], row % many, bits)
    zero += config.get("checkpoint_format", "gptq") == "gptq"
    return (code - zero) * float(t["scales"][group][row])


def _compressed(config: Any, t: Any, row: int, column: int, columns: int) -> Any:
    weights = config["config_groups"]["group_0"]["weights"]
    if "weight_global_scale" in t:
        return _e2m1(t, row, column)
    bits, half = weights["num_bits"], 1 << weights["num_bits"] - 1
    many = 32 // bits
    if weights["strategy"] == "tensor":
        scale, at = t["weight_scale"][0], (0, 0)
    else:
        height, width = weights.get("block_structure", (1, weights.get("group_size", columns)))
        at = (row // height, column // width)
        if "weight_g_idx" in t:
            at = (row, t["weight_g_idx"][column])
        scale = t["weight_scale"][at[0]][at[1]]
    if "weight_packed" in t:
        code = _bits(t["weight_packed"][row][column // many], column % many, bits) - half
    else:
        code = t["weight"][row][column]
    zero = 0
    if "weight_zero_point" in t and "weight_packed" in t:
        zero = _bits(t["weight_zero_point"][row // many][at[1]], row % many, bits) - half
    elif "weight_zero_point" in t:
        zero = t["weight_zero_point"][at[0]][at[1]]
    return (code - zero) * float(scale)


def _e2m1(t: Any, row: int, column: int) -> Any:
    bits = t["weight_packed"][row][column // 2] >> 4 * (column % 2) & 15
    size = (0, 0.5, 1, 1.5, 2, 3, 4, 6)[bits & 7]
    # The quotient is a number of float32.
    scale = np.float32(t["weight_scale"][row][column // 16]) / np.float32(
        t["weight_global_scale"][0]
    )
    return (-size if bits & 8 else size) * float(scale)


def _fp8(config: Any, t: Any, row: int, column: int, columns: int) -> Any:
    scale = t["weight_scale_inv" if "weight_scale_inv" in t else "weight_scale"]
    block = config.get("weight_block_size")
    if block:
        scale = scale[row // block[0]][column // block[1]]
    elif isinstance(scale, list):
        scale = scale[row][0]
    return float(t["weight"][row][column]) * scale
