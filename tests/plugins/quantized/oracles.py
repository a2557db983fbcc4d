"""Oracles: published packages read our checkpoints and pack their own.

``python -m tests.plugins.quantized.oracles`` writes ``written.json`` and ``packs.safetensors``
beside it, which the tests read where a package is missing. It needs awq (0.2.9), gptqmodel
(7.7.0), compressed_tensors (0.20.0) and transformers, with what they import, in PYTHONPATH.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

from gatewayd_hooks.quantization import GroupedWeight, Matrix
from gatewayd_quant_awq.config import AwqConfig
from gatewayd_quant_awq.strategy import Awq
from gatewayd_quant_fp8.config import Fp8QuantizerConfig
from gatewayd_quant_fp8.strategy import Fp8Quantizer
from gatewayd_quant_gptq.config import GptqConfig
from gatewayd_quant_gptq.strategy import Gptq

HERE = Path(__file__).parent
NAME = "model.layers.0.mlp.down_proj"
ROWS, COLUMNS = 32, 64
Tensors = dict[str, torch.Tensor]


class Written(NamedTuple):
    """What one of our writers makes of a matrix.

    Attributes:
        announced: the ``quantization_config`` beside it.
        tensors: by suffix.
        weight: what was packed.
    """

    announced: Mapping[str, Any]
    tensors: Tensors
    weight: GroupedWeight


def _gptq(**settings: Any) -> Callable[[], Any]:
    return lambda: Gptq(GptqConfig(**settings))


_WRITERS: dict[str, Callable[[], Any]] = {
    "awq": lambda: Awq(AwqConfig(group_size=32)),
    "awq, a group of a row": lambda: Awq(AwqConfig(group_size=-1)),
    "gptq": _gptq(group_size=32),
    "gptq, symmetric": _gptq(group_size=32, symmetric=True),
    "gptq of 8 bits": _gptq(bits=8, group_size=-1),
    "gptq with an order": _gptq(group_size=32, act_order=True),
    "gptq with an order, symmetric": _gptq(group_size=32, act_order=True, symmetric=True),
    "fp8": lambda: Fp8Quantizer(Fp8QuantizerConfig(scales="tensor")),
    "fp8 in blocks": lambda: Fp8Quantizer(Fp8QuantizerConfig(scales="block")),
}
WRITTEN = tuple(_WRITERS)


def matrix_of(rows: int, columns: int) -> torch.Tensor:
    """Any weight, the same always: whole numbers that a digest gives, so of no generator."""
    count = rows * columns
    bits = hashlib.shake_256(f"{rows} {columns}".encode()).digest(2 * count)
    some = torch.frombuffer(bytearray(bits), dtype=torch.int16).float()
    return (some / 2**15).view(rows, columns) * torch.linspace(0.2, 1.5, columns)


def written(name: str) -> Written:
    """What a writer makes."""
    writer = _WRITERS[name]()
    rows, columns = (256, 384) if name == "fp8 in blocks" else (ROWS, COLUMNS)
    matrix = Matrix(NAME, rows, columns)
    weight = writer.nearest(matrix, matrix_of(rows, columns))
    if "order" in name:
        order = torch.arange(columns).mul_(37).remainder_(columns)  # 37 and 64 share no divisor
        weight = weight._replace(group_of=torch.div(order, 32, rounding_mode="floor").int())
    announced = writer.announce([NAME], [])
    return Written(announced, dict(writer.pack(matrix, weight)), weight)


def digest(tensors: Tensors) -> str:
    """Of names, types, shapes and bytes; of numbers with one zero."""
    made = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        some = tensor + 0.0 if tensor.is_floating_point() and tensor.itemsize > 1 else tensor
        made.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        made.update(some.reshape(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


def published(name: str, one: Written) -> torch.Tensor:
    """The numbers that the format's own package reads, in the type that it computes in.

    Raises:
        ImportError: the package is not there.
    """
    method = one.announced["quant_method"]
    if method == "fp8":
        return (_read_blocks if "blocks" in name else _read_floats)(one)
    return (_read_awq if method == "awq" else _read_gptq)(one)


def _package(name: str) -> None:
    """Let modules of a package be imported without what it imports itself.

    Raises:
        ImportError: it is not there.
    """
    if name in sys.modules:
        return
    found = importlib.util.find_spec(name)
    if found is None or found.submodule_search_locations is None:
        raise ImportError(f"there is no {name}")
    package = types.ModuleType(name)
    package.__path__ = list(found.submodule_search_locations)
    sys.modules[name] = package


def _imported(package: str, module: str) -> Any:
    _package(package)
    return importlib.import_module(f"{package}.{module}")


def _read_awq(one: Written) -> torch.Tensor:
    """By AutoAWQ's layer: its buffers take the tensors as they are, and it multiplies ones."""
    gemm = _imported("awq", "modules.linear.gemm")
    gemm.awq_ext, gemm.TRITON_AVAILABLE = None, False
    size = one.announced["group_size"]
    layer = gemm.WQLinear_GEMM(4, size, COLUMNS, ROWS, False, "cpu")
    layer.load_state_dict(one.tensors)
    made = _imported("awq", "utils.packing_utils").dequantize_gemm(
        layer.qweight, layer.qzeros, layer.scales, 4, layer.group_size
    )
    made = torch.Tensor(made).to(made.dtype)
    ones = torch.eye(COLUMNS, dtype=torch.float16)
    assert torch.equal(layer(ones[None])[0], made), "what it multiplies is what it unpacks"
    return made.t()


def _torch_linear(announced: Mapping[str, Any]) -> Any:
    module = importlib.import_module("gptqmodel.nn_modules.qlinear.torch")
    module.TorchLinear.optimize = lambda *args, **kwargs: None  # nothing is compiled
    return module.TorchLinear(
        bits=announced["bits"],
        group_size=announced["group_size"],
        sym=announced["sym"],
        desc_act=announced["desc_act"],
        in_features=COLUMNS,
        out_features=ROWS,
        bias=False,
        pack_dtype=torch.int32,
        register_buffers=True,
    ).eval()


def _read_gptq(one: Written) -> torch.Tensor:
    """By gptqmodel's layer, whose loader refuses zeros of their own in the first format."""
    announced = one.announced
    assert announced["sym"] or announced["checkpoint_format"] == "gptq_v2"
    layer = _torch_linear(announced)
    layer.load_state_dict(one.tensors)
    if announced["checkpoint_format"] == "gptq":
        convert = importlib.import_module("gptqmodel.utils.model")
        convert.convert_gptq_v1_to_v2_format_module(layer, announced["bits"], torch.int32)
    made: torch.Tensor = layer.dequantize_weight()
    return made.t()


def _scheme(**weights: Any) -> Any:
    quantization = importlib.import_module("compressed_tensors.quantization")
    inputs = weights.pop("input_activations", None)
    made = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return quantization.QuantizationScheme.model_validate(made)


def _compressor(form: str) -> Any:
    compressors = importlib.import_module("compressed_tensors.compressors")
    return compressors.BaseCompressor.get_value_from_registry(form)


def _read_floats(one: Written) -> torch.Tensor:
    """By compressed-tensors, whose floats with one scale have the names that vLLM's fp8 has."""
    scheme = _scheme(num_bits=8, type="float", strategy="tensor")
    made: torch.Tensor = _compressor("float-quantized").decompress(one.tensors, scheme)["weight"]
    return made


def _read_blocks(one: Written) -> torch.Tensor:
    from transformers.integrations import finegrained_fp8

    block = one.announced["weight_block_size"]
    layer = finegrained_fp8.FP8Linear(
        one.tensors["weight"].shape[1], len(one.tensors["weight"]), tuple(block)
    )
    layer.load_state_dict(one.tensors)
    made: torch.Tensor = finegrained_fp8._dequantize_fp8_weight(
        layer.weight.data, layer.weight_scale_inv.data, block, torch.float32
    )
    return made


_TOKENS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
_BYTES = {**_TOKENS, "type": "int"}
_FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "packed": ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32}),
    "packed with zeros": (
        "pack-quantized",
        {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False},
    ),
    "packed bytes": ("pack-quantized", {"num_bits": 8, "strategy": "channel"}),
    "integers": (
        "int-quantized",
        {"num_bits": 8, "strategy": "channel", "input_activations": _BYTES},
    ),
    "integers with zeros": (
        "int-quantized",
        {"num_bits": 8, "strategy": "channel", "symmetric": False, "input_activations": _BYTES},
    ),
    "integers, one scale": ("int-quantized", {"num_bits": 8, "strategy": "tensor"}),
    "floats": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "channel", "input_activations": _TOKENS},
    ),
    "floats, one scale": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "tensor"},
    ),
    "floats in blocks": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [8, 32]},
    ),
    "floats of 4 bits": (
        "nvfp4-pack-quantized",
        {
            "num_bits": 4,
            "type": "float",
            "strategy": "tensor_group",
            "group_size": 16,
            "scale_dtype": torch.float8_e4m3fn,
        },
    ),
}


class Pack(NamedTuple):
    """A matrix that a package has packed.

    Attributes:
        announced: the ``quantization_config`` beside it.
        tensors: by suffix.
        numbers: what it unpacks, in the type that it computes in.
        by: the package, and its version.
    """

    announced: dict[str, Any]
    tensors: Tensors
    numbers: torch.Tensor
    by: str


def _extremes(weight: torch.Tensor, args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Least and greatest numbers of what shares a scale, in the shape of scales."""
    rows, columns = weight.shape
    if args.strategy == "tensor":
        return weight.min().view(1), weight.max().view(1)
    tall, wide = args.block_structure or (1, args.group_size or columns)
    some = weight.view(rows // tall, tall, columns // wide, wide)
    return some.amin((1, 3)), some.amax((1, 3))


def compressed(name: str) -> Pack:
    """A pack of compressed-tensors' own compressor."""
    form, weights = _FORMS[name]
    quantization = importlib.import_module("compressed_tensors.quantization")
    utils = importlib.import_module("compressed_tensors.quantization.utils")
    scheme = _scheme(**weights)
    args, weight = scheme.weights, matrix_of(16, COLUMNS)
    weight = weight if "4 bits" in name else weight.half()
    state = {"weight": weight}
    if args.strategy == "tensor_group":
        state["weight_global_scale"] = utils.generate_gparam(weight.min(), weight.max())
    low, high = _extremes(weight, args)
    scale, zero = utils.calculate_qparams(
        low, high, args, global_scale=state.get("weight_global_scale")
    )
    state |= {"weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}
    made = _compressor(form).compress(state, scheme)
    config = quantization.QuantizationConfig(
        config_groups={"group_0": scheme},
        format=form,
        quantization_status="compressed",
        ignore=["lm_head"],
    )
    announced = json.loads(config.model_dump_json())
    numbers = _compressor(form).decompress(made, scheme)["weight"]
    tensors = {key: tensor.detach().contiguous() for key, tensor in made.items()}
    version = importlib.import_module("compressed_tensors").__version__
    return Pack(announced, tensors, numbers.detach(), f"compressed_tensors {version}")


def awq_pack() -> Pack:
    """A pack of AutoAWQ's own layer."""
    gemm = _imported("awq", "modules.linear.gemm")
    gemm.get_best_device = lambda: "cpu"
    one = written("awq")
    weight = one.weight
    scales = weight.scales.t().contiguous()
    zeros = (-weight.offsets / weight.scales).round().t() if weight.offsets is not None else scales
    linear = torch.nn.Linear(COLUMNS, ROWS, bias=False)
    linear.weight.data = matrix_of(ROWS, COLUMNS)
    linear.weight.data = linear.weight.data.half().float()
    layer = gemm.WQLinear_GEMM.from_linear(linear, 4, 32, scales=scales, zeros=zeros.contiguous())
    tensors = dict(layer.state_dict())
    numbers = _read_awq(one._replace(tensors=tensors))
    return Pack(dict(one.announced), tensors, numbers.contiguous(), "autoawq 0.2.9")


def gptq_pack() -> Pack:
    """A pack of gptqmodel's own layer, in its own format."""
    one = written("gptq with an order")
    weight = one.weight
    assert weight.group_of is not None
    assert weight.offsets is not None
    layer = _torch_linear(one.announced)
    linear = torch.nn.Linear(COLUMNS, ROWS, bias=False)
    linear.weight.data = matrix_of(ROWS, COLUMNS)
    zeros = (-weight.offsets / weight.scales).round()
    layer.pack_original(linear, weight.scales, zeros, weight.group_of)
    tensors = {key: tensor.contiguous() for key, tensor in layer.state_dict().items()}
    numbers = _read_gptq(one._replace(tensors=tensors))
    return Pack(dict(one.announced), tensors, numbers.contiguous(), "gptqmodel 7.7.0")


PACKS: dict[str, Callable[[], Pack]] = {
    **{name: lambda name=name: compressed(name) for name in _FORMS},  # type: ignore[misc]
    "awq": awq_pack,
    "gptq": gptq_pack,
}
_BY = {"awq": "autoawq 0.2.9", "gptq": "gptqmodel 7.7.0"}


def main() -> None:
    """Write both files."""
    digests = {}
    for name in WRITTEN:
        one = written(name)
        package = _BY.get(one.announced["quant_method"])
        if package is None:
            package = "transformers 5.23.0" if "blocks" in name else "compressed_tensors 0.20.0"
        numbers = published(name, one)
        digests[name] = {
            "by": package,
            "dtype": str(numbers.dtype).removeprefix("torch."),
            "tensors": digest(one.tensors),
            "numbers": digest({"": numbers}),
        }
    (HERE / "written.json").write_text(json.dumps(digests, indent=2) + "\n")
    tensors: Tensors = {}
    told = {}
    for name, make in PACKS.items():
        pack = make()
        tensors |= {f"{name}/{suffix}": tensor for suffix, tensor in pack.tensors.items()}
        tensors[f"{name}/numbers"] = pack.numbers
        told[name] = {"by": pack.by, "announced": pack.announced}
    save_file(tensors, HERE / "packs.safetensors", {"packs": json.dumps(told)})


if __name__ == "__main__":
    main()
