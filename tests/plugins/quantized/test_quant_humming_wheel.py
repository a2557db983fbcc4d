r"""``quantizer.humming``: checked against the wheel, as far as no GPU allows.

It is imported where it is installed, or lies unpacked on ``PYTHONPATH`` with ``cuda-bindings``:

    HUMMING_DISABLE_PARALLEL_BUILD=1 PYTHONPATH=... pytest \
      tests/plugins/quantized/test_quant_humming_wheel.py
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_hooks.testing import multiplying
from gatewayd_hooks.testing.weights.few_bits import dense
from gatewayd_quant_humming.packing import pack, packed
from tests.plugins.quantized import fake_humming as stand_in
from tests.plugins.quantized.fake_humming import unpacked
from tests.plugins.quantized.format_cases import CASES

layer = pytest.importorskip("humming.layer", reason="humming-kernels is not installed")
schema = pytest.importorskip("humming.schema", reason="humming-kernels is not installed")
ops: Any = pytest.importorskip("humming.ops", reason="humming-kernels is not installed")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (stand_in.HummingLayer.__init__, lambda: layer.HummingLayer.__init__),
        (stand_in.HummingLayer.forward, lambda: layer.HummingLayer.forward),
        (stand_in.HummingLayer.load_from_tensors, lambda: layer.HummingLayer.load_from_tensors),
        (stand_in.HummingLayer.transform, lambda: layer.HummingLayer.transform),
        (
            stand_in.HummingWeightSchema.is_compatible_with,
            lambda: schema.HummingWeightSchema.is_compatible_with,
        ),
    ],
)
def test_what_stands_for_it_is_called_as_it_is(
    ours: Callable[..., Any], theirs: Callable[[], Callable[..., Any]]
) -> None:
    assert _parameters(ours) == _parameters(theirs())


@pytest.mark.parametrize("name", ["HummingWeightSchema", "HummingInputSchema"])
def test_what_stands_for_its_forms_has_their_fields(name: str) -> None:
    ours, theirs = (
        [f.name for f in dataclasses.fields(getattr(m, name))] for m in (stand_in, schema)
    )
    assert ours == theirs


def _parameters(of: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(of).parameters.values()]


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels that pack and unpack, written bit by bit; all else is its own code."""

    def unpack(inputs: torch.Tensor, num_bits: int, outputs: Any = None) -> torch.Tensor:
        flat = unpacked(inputs.reshape(-1, inputs.shape[-1]).numpy(), num_bits)
        return torch.from_numpy(flat).int().reshape(*inputs.shape[:-1], -1)

    def pack_all(inputs: torch.Tensor, num_bits: int, outputs: Any = None) -> torch.Tensor:
        return pack(inputs.to(torch.uint8), num_bits)

    def floats(inputs: torch.Tensor, *form: Any, **more: Any) -> torch.Tensor:
        return inputs.to(torch.uint8).view(torch.float8_e4m3fn).float()

    monkeypatch.setattr(ops, "unpack_weight", unpack)
    monkeypatch.setattr(ops, "pack_weight", pack_all)
    monkeypatch.setattr(ops, "dequant_weight", floats)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")


def _schema(made: Any) -> Any:
    return schema.HummingWeightSchema(
        b_dtype=made.dtype,
        weight_scale_group_size=made.group_size,
        has_zero_point="zero_point" in made.tensors,
    )


@pytest.mark.usefixtures("on_a_cpu")
def test_its_layers_take_the_tensors_and_its_code_gives_the_numbers_back() -> None:
    seen = set()
    for case in multiplying.cases():
        form, weight = case.form, case.weight
        if form.dtype != torch.bfloat16 or not form.is_ordered or form.rows % 128:
            continue
        made = packed(weight, case.bias, form.dtype)
        if made is None:
            continue
        kind = _schema(made)
        one = layer.HummingLayer(
            shape_n=form.rows,
            shape_k=form.columns,
            weight_config=kind,
            has_bias=form.has_bias,
            torch_dtype=form.dtype,
        )
        stored = dict(one.named_parameters())
        assert stored.keys() == made.tensors.keys()
        for name, tensor in made.tensors.items():
            assert (stored[name].shape, stored[name].dtype) == (tensor.shape, tensor.dtype)
        kind.validate_tensors(
            made.tensors, form.rows, form.columns, form.dtype, has_bias=form.has_bias
        )
        rounded = weight._replace(scales=weight.scales.bfloat16().float())
        assert torch.allclose(kind.dequant_tensors(made.tensors), dense(rounded), atol=1e-6)
        seen.add((made.dtype, kind.has_zero_point, kind.weight_scale_type.value))
    assert seen == {
        ("uint4", True, "group"),
        ("uint4", True, "channel"),
        ("uint4", False, "group"),
        ("uint4", False, "channel"),
        ("uint8", False, "group"),
        ("uint8", False, "channel"),
        ("float8e4m3", False, "channel"),
    }


@pytest.mark.usefixtures("on_a_cpu")
def test_what_it_makes_of_an_awq_checkpoint_is_what_is_made_of_its_weight() -> None:
    from gatewayd_hooks.quantization import Announcement, Matrix
    from gatewayd_quant_awq.strategy import Awq

    case = CASES["awq"]
    tensors = case.tensors(128, 256)
    scheme = Awq().scheme(Announcement(case.announced, "here"))
    weight = scheme.weight(Matrix("m", 128, 256), tensors.__getitem__)
    made = packed(weight, None, torch.bfloat16)
    assert made is not None
    theirs = schema.AWQWeightSchema(bits=4, group_size=int(case.announced["group_size"]))
    kind, converted = theirs._convert_humming(tensors, [128], [256], torch.bfloat16)
    assert (str(kind.b_dtype), kind.weight_scale_group_size) == (made.dtype, made.group_size)
    assert converted.keys() == made.tensors.keys()
    for name, tensor in converted.items():
        assert torch.equal(tensor, made.tensors[name]), name


class Device:
    """What it knows of a GPU: an H200, or one of the same size of another make."""

    is_ppu, name, index, sm_count = False, "NVIDIA H200", 0, 132
    max_smem_size, max_smem_size_kb, default_smem_size = 227 << 10, 227.0, 48 << 10
    max_threads_per_sm, max_registers_per_sm, l2_cache_size = 2048, 65536, 50 << 20
    memory_bandwidth_gbps = 4800.0

    def __init__(self, sm_version: int) -> None:
        self.sm_version, self.sm_major = sm_version, sm_version // 10
        self.tensorcore_tops = {"float16": 990.0, "bfloat16": 990.0}


@pytest.mark.parametrize("sm_version", [80, 89, 90, 100, 120])
@pytest.mark.parametrize("name", ["uint4", "uint8", "float8e4m3", "float4e0m3"])
def test_it_has_blocks_for_every_shape_that_suits(
    name: str, sm_version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, tune = (importlib.import_module(f"humming.{name}") for name in ("config", "tune"))
    made = Device(sm_version)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(
        "humming.utils.device._extension", SimpleNamespace(_DeviceInfo=lambda index: made)
    )
    monkeypatch.setattr("humming.device.current_device._value", made)
    monkeypatch.setattr("humming.device.DeviceInfo._instances", {})
    monkeypatch.setattr("humming.config.config._cuda_compiler_version", lambda compiler: (13, 0))
    for rows, columns, group_size in itertools.product((128, 1152), (128, 1600), (16, 64, 0)):
        described = config.LayerConfig(
            sm_version=sm_version,
            a_dtype="bfloat16",
            b_dtype=name,
            c_dtype="bfloat16",
            shape_n=rows,
            shape_k=columns,
            weight_scale_group_size=group_size,
        )
        for lines, in_order in itertools.product((1, 64, 512), (False, True)):
            blocks = tune.get_heuristics_class(0).get_config(
                layer_config=described,
                shape_m=lines,
                use_f16_accum=False,
                use_batch_invariant=in_order,
                gemm_type=config.GemmType.DENSE,
                use_m_major_input_scale=False,
            )["block_shape"]
            assert (rows % blocks[1], columns % blocks[2]) == (0, 0)
