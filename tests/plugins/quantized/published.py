"""Digests of the cases as decoded by published code.

``python -m tests.plugins.quantized.published`` writes ``published.json`` beside it, which the tests
read. It needs what this project does not: the folders of the packages compressed_tensors (0.20),
auto_gptq (0.7) and awq (0.2), with what they import, in PYTHONPATH. Where one module of a package
is enough the others are not imported.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.plugins.quantized.format_cases import CASES, GROUP, Case

ROWS, COLUMNS = 64, 128


def digest(numbers: torch.Tensor) -> str:
    """Of the bytes, with one zero."""
    some = (numbers + 0.0).contiguous().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(some).hexdigest()


def in_type(case: Case, numbers: torch.Tensor) -> torch.Tensor:
    """In the type of the scales, which published code computes in."""
    forms = case.forms(ROWS, COLUMNS)
    if "weight_global_scale" in forms:
        return numbers.bfloat16()
    scale = next(dtype for suffix, (dtype, _) in forms.items() if "scale" in suffix)
    return numbers.to({"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}[scale])


def _module(path: str) -> Any:
    """A file of a package, without the package."""
    file = next(Path(folder, path) for folder in sys.path if Path(folder, path).exists())
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _awq(case: Case, t: dict[str, torch.Tensor]) -> torch.Tensor:
    size = COLUMNS if case.announced["group_size"] == -1 else GROUP
    made = _module("awq/utils/packing_utils.py").dequantize_gemm(
        t["qweight"], t["qzeros"], t["scales"], 4, size
    )
    return torch.Tensor(made).to(made.dtype).t()


def _gptq(case: Case, t: dict[str, torch.Tensor]) -> torch.Tensor:
    module = _module("auto_gptq/nn_modules/qlinear/qlinear_cuda.py")
    config = case.announced
    layer = module.QuantLinear(config["bits"], config["group_size"], COLUMNS, ROWS, bias=False)
    for name, tensor in t.items():
        assert getattr(layer, name).shape == tensor.shape
        setattr(layer, name, tensor)
    made: torch.Tensor = layer(torch.eye(COLUMNS, dtype=torch.float16))
    return made.t()


def _compressed(case: Case, t: dict[str, torch.Tensor]) -> torch.Tensor:
    compressors, quantization = (
        importlib.import_module(f"compressed_tensors.{name}")
        for name in ("compressors", "quantization")
    )
    group = case.announced["config_groups"]["group_0"]
    scheme = quantization.QuantizationScheme.model_validate(group)
    compressor = compressors.BaseCompressor.load_from_registry(case.announced["format"])
    made: torch.Tensor = compressor.decompress(dict(t), scheme)["weight"]
    return made


def _fp8(case: Case, t: dict[str, torch.Tensor]) -> torch.Tensor:
    from transformers.integrations import finegrained_fp8

    made: torch.Tensor = finegrained_fp8._dequantize_fp8_weight(
        t["weight"], t["weight_scale_inv"], case.announced["weight_block_size"], torch.float32
    )
    return made


_LEFT_OUT = {
    "gptq_v2 with an order",  # the package knows the first format only
    "packed with an order",  # removed from the package in 2026
    "fp8",  # vLLM's; transformers knows the other name
    "fp8 by row",
}


def main() -> None:
    """Write the digests."""
    made = {}
    readers: dict[str, Callable[[Case, dict[str, torch.Tensor]], torch.Tensor]] = {
        "awq": _awq,
        "gptq": _gptq,
        "compressed_tensors": _compressed,
        "fp8": _fp8,
    }
    for name, case in CASES.items():
        if name not in _LEFT_OUT:
            numbers = readers[case.method](case, case.tensors(ROWS, COLUMNS))
            assert numbers.dtype == in_type(case, numbers).dtype, name
            made[name] = digest(numbers)
    Path(__file__).with_name("published.json").write_text(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    main()
