"""Cases of quantized checkpoint formats: config entries, and the tensors of one matrix."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Forms = dict[str, tuple[str, tuple[int, ...]]]
"""Types and shapes by suffix, as safetensors calls them."""
GROUP = 32
BLOCK = (32, 32)
_INTEGERS = {"I8": torch.int8, "U8": torch.uint8, "I32": torch.int32, "I64": torch.int64}
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """One format with its settings.

    Attributes:
        name: of the case.
        announced: its ``quantization_config``.
        forms: of the tensors of a matrix, by its rows and columns.
    """

    name: str
    announced: Mapping[str, Any]
    forms: Callable[[int, int], Forms]

    @property
    def method(self) -> str:
        """The strategy that reads it."""
        return str(self.announced["quant_method"]).replace("-", "_")

    def tensors(self, rows: int, columns: int, salt: str = "") -> dict[str, torch.Tensor]:
        """Any bits, where they mean something; the same ones for the same arguments."""
        forms = self.forms(rows, columns)
        made = {}
        for suffix, (dtype, shape) in forms.items():
            key = f"{self.name} {suffix} {rows} {columns} {salt}"
            made[suffix] = _tensor(key, dtype, shape).clone()
            if suffix in ("g_idx", "weight_g_idx"):
                order = _tensor(f"{key} order", "I32", shape).argsort()
                made[suffix] = (order // GROUP).to(torch.int32)
            if suffix == "weight_shape":
                made[suffix] = torch.tensor([rows, columns])
        return made


@functools.lru_cache(256)
def _tensor(key: str, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    count = math.prod(shape)
    some = torch.frombuffer(
        bytearray(hashlib.shake_256(key.encode()).digest(8 * count)), dtype=torch.uint8
    )
    if dtype in _INTEGERS:
        kind = _INTEGERS[dtype]
        return some.view(kind)[:count].clone().reshape(shape)
    if dtype == "F8_E4M3":
        some = torch.where(some & 127 == 127, some & 248, some)
        return some[:count].clone().view(torch.float8_e4m3fn).reshape(shape)
    low, high = some[:count].float(), some[count : 2 * count].long() % 8
    return ((1 + low / 256) * 2.0 ** (high - 10)).to(_FLOATS[dtype]).reshape(shape)


def _groups(columns: int, size: int) -> int:
    return 1 if size == -1 else -(-columns // size)


def _awq(name: str, size: int, scale: str = "F16") -> Case:
    announced = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": size,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": None,
    }

    def forms(rows: int, columns: int) -> Forms:
        groups = _groups(columns, size)
        return {
            "qweight": ("I32", (columns, rows // 8)),
            "qzeros": ("I32", (groups, rows // 8)),
            "scales": (scale, (groups, rows)),
        }

    return Case(name, announced, forms)


def _gptq(name: str, bits: int, size: int, **more: Any) -> Case:
    announced = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": size,
        "desc_act": False,
        "sym": False,
        **more,
    }

    def forms(rows: int, columns: int) -> Forms:
        groups = _groups(columns, size)
        made: Forms = {
            "qweight": ("I32", (columns * bits // 32, rows)),
            "qzeros": ("I32", (groups, rows * bits // 32)),
            "scales": ("F16", (groups, rows)),
        }
        return {**made, "g_idx": ("I32", (columns,))} if announced["desc_act"] else made

    return Case(name, announced, forms)


def _compressed(name: str, form: str, scale: str, **weights: Any) -> Case:
    args = {
        "num_bits": 8,
        "type": "float" if form == "float-quantized" else "int",
        "symmetric": True,
        "strategy": "channel",
        "dynamic": False,
        **weights,
    }
    group = {"targets": ["Linear"], "weights": args, "input_activations": None}
    announced = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*mlp\\.gate$"],
        "quantization_status": "compressed",
    }
    bits = args["num_bits"]

    def forms(rows: int, columns: int) -> Forms:
        shape = {
            "tensor": (1,),
            "channel": (rows, 1),
            "group": (rows, _groups(columns, GROUP)),
            "block": (-(-rows // BLOCK[0]), -(-columns // BLOCK[1])),
        }[args["strategy"]]
        made: Forms = {"weight_scale": (scale, shape)}
        if form == "pack-quantized":
            made["weight_packed"] = ("I32", (rows, -(-columns * bits // 32)))
            made["weight_shape"] = ("I64", (2,))
        else:
            kind = "F8_E4M3" if form == "float-quantized" else "I8"
            made["weight"] = (kind, (rows, columns))
        if not args["symmetric"]:
            packed = ("I32", (-(-rows * bits // 32), shape[-1]))
            made["weight_zero_point"] = packed if form == "pack-quantized" else ("I8", shape)
        if args.get("actorder") == "group":
            made["weight_g_idx"] = ("I32", (columns,))
        return made

    return Case(name, announced, forms)


def _fp8(name: str, suffix: str, shape: Callable[[int, int], tuple[int, ...]], **more: Any) -> Case:
    announced = {"quant_method": "fp8", "activation_scheme": "dynamic", **more}

    def forms(rows: int, columns: int) -> Forms:
        return {"weight": ("F8_E4M3", (rows, columns)), suffix: ("F32", shape(rows, columns))}

    return Case(name, announced, forms)


def _nvfp4(name: str) -> Case:
    case = _compressed(name, "nvfp4-pack-quantized", "F32", num_bits=4, type="float")
    weights = case.announced["config_groups"]["group_0"]["weights"]
    weights |= {"strategy": "tensor_group", "group_size": 16}

    def forms(rows: int, columns: int) -> Forms:
        return {
            "weight_packed": ("U8", (rows, columns // 2)),
            "weight_scale": ("F8_E4M3", (rows, columns // 16)),
            "weight_global_scale": ("F32", (1,)),
        }

    return Case(name, case.announced, forms)


_GROUPED = {"strategy": "group", "group_size": GROUP}
_BLOCKED = {"strategy": "block", "block_structure": list(BLOCK)}
_ALL = (
    _awq("awq", GROUP),
    _awq("awq of bfloat16, a group of a row", -1, "BF16"),
    _gptq("gptq", 4, GROUP),
    _gptq("gptq of 8 bits, a group of a row", 8, -1),
    _gptq("gptq with an order", 4, GROUP, desc_act=True),
    _gptq("gptq_v2 with an order", 4, GROUP, desc_act=True, checkpoint_format="gptq_v2"),
    _compressed("packed", "pack-quantized", "BF16", num_bits=4, **_GROUPED),
    _compressed(
        "packed with zeros", "pack-quantized", "F16", num_bits=4, symmetric=False, **_GROUPED
    ),
    _compressed(
        "packed, float32", "pack-quantized", "F32", num_bits=4, symmetric=False, **_GROUPED
    ),
    _compressed("packed bytes, float32", "pack-quantized", "F32", symmetric=False, **_GROUPED),
    _compressed("packed bytes", "pack-quantized", "BF16", symmetric=False),
    _compressed(
        "packed with an order", "pack-quantized", "F16", num_bits=4, actorder="group", **_GROUPED
    ),
    _compressed("integers", "int-quantized", "BF16"),
    _compressed("integers with zeros", "int-quantized", "F32", symmetric=False),
    _compressed("integers, one scale", "int-quantized", "F32", strategy="tensor"),
    _compressed("floats", "float-quantized", "BF16"),
    _compressed("floats, one scale", "float-quantized", "F32", strategy="tensor"),
    _compressed("floats in blocks", "float-quantized", "F32", **_BLOCKED),
    _nvfp4("floats of 4 bits"),
    _fp8("fp8", "weight_scale", lambda rows, columns: ()),
    _fp8("fp8 by row", "weight_scale", lambda rows, columns: (rows, 1)),
    _fp8(
        "fp8 of transformers", "weight_scale_inv", lambda rows, columns: (), weight_block_size=None
    ),
    _fp8(
        "fp8 in blocks",
        "weight_scale_inv",
        lambda rows, columns: (-(-rows // BLOCK[0]), -(-columns // BLOCK[1])),
        weight_block_size=list(BLOCK),
    ),
)
CASES = {case.name: case for case in _ALL}
