"""Low-bit weights on a device runner: tokens equal the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.quantized.block_scales import GROUP
from gatewayd_engine.kernels.quantized.scratch import MOST_LINES, DequantizeScratch
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model import parts
from gatewayd_engine.model.layers import Linear, LinearOp
from gatewayd_engine.model.linears.dequantized import DequantizedLinear
from gatewayd_engine.model.linears.w8a8_gpu import (
    BlockLinear,
    Fp8DeviceLinear,
    Int8DeviceLinear,
    RoundedLinear,
)
from gatewayd_engine.model.weights import dense
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.quantization import GroupedWeight, Weight
from tests.engine.core.models.test_formats import catalog, written
from tests.engine.core.prompts import PROMPTS
from tests.engine.core.small_model import small
from tests.gpu.engines import follow, greedy
from tests.plugins.quantized.writers import WRITERS, Writer

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
AUTO = StrategyChoice("auto")
PACKED = StrategyChoice("auto", {"fp8": {"packed": True}})
"""The device of these tests is a CPU, too, where fp8 would be made floats."""
FORMATS = ("awq", "gptq_v2 with an order")
MORE = ("packed with zeros", "floats of 4 bits")
CLOSE = 0.5
"""How far apart two logits may be and still change places: one of 108 tokens did, 0.21 apart."""
LONG = [*range(20, 20 + 3 * MOST_LINES)]


def answers(engine: Any) -> list[list[int]]:
    """Of short prompts, decoded together, and of one that takes more lines than codes are for."""
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True)[0] for p in [*PROMPTS, LONG]]
    done = engine.run()
    return [done[i].tokens for i in ids]


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Which ways a product has gone."""
    ways: set[str] = set()
    for name in ("grouped_mm", "dequantize_rows"):
        does = getattr(TorchKernels, name)

        def noting(*args: Any, name: str = name, does: Any = does) -> None:
            ways.add(name)
            does(*args)

        monkeypatch.setattr(TorchKernels, name, noting)
    return ways


@pytest.mark.parametrize(
    "name", [*FORMATS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]
)
def test_tokens_of_a_quantized_checkpoint_are_the_cpus(
    name: str,
    make_engine: Make,
    make_device_engine: Make,
    both: set[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(parts, "make_cpu_linear", exact)
    folder = tmp_path / "made"
    written(small(), folder, WRITERS[name])
    fields = {"catalog": catalog(), "quantizer": PACKED}
    device = make_device_engine(folder, **fields)
    cpu = make_engine(folder, **fields, cpu_activations="float")
    assert answers(device) == answers(cpu)
    assert both == {"grouped_mm", "dequantize_rows"}
    floats = make_engine()
    assert device.info.weight_bytes < floats.info.weight_bytes


def exact(weight: Weight, bias: torch.Tensor | None = None) -> LinearOp:
    """What a CPU makes of the numbers; its kernel of 4 bits rounds inputs to bfloat16."""
    if isinstance(weight, GroupedWeight):
        return DequantizedLinear(weight, bias)
    return Linear(dense(weight), bias)


class Rounding:
    """A matrix of floats whose input is rounded to e4m3, row by row, or group by group."""

    def __init__(self, weight: GroupedWeight, bias: torch.Tensor | None = None) -> None:
        self._linear = Linear(dense(weight).float(), bias)
        self._group = 0 if weight.scales.shape[1] == 1 else GROUP
        self.nbytes = 0

    rounds_inputs = False

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        codes, scales = TorchKernels().quantize(x, torch.float8_e4m3fn, self._group)
        numbers = torch.unflatten(codes.float(), 1, (scales.shape[1], -1)) * scales.unsqueeze(-1)
        return self._linear(numbers.flatten(1), out=out)

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> None:
        onto.add_(self(x))


@pytest.mark.parametrize("name", ["floats, one scale", "fp8 in blocks", "int8"])
def test_tokens_of_rounded_activations_are_the_cpus(
    name: str,
    make_engine: Make,
    make_device_engine: Make,
    device_runner: Callable[[Any], Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    fields: dict[str, Any] = {"quantizer": StrategyChoice(name)}
    folder = small()
    kind: type[RoundedLinear] = Int8DeviceLinear
    if name != "int8":
        folder, kind, writer = tmp_path / "made", BlockLinear, WRITERS[name]
        if name != "fp8 in blocks":
            inputs = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
            kind, writer = Fp8DeviceLinear, with_inputs(writer, inputs)
        written(small(), folder, writer)
        fields = {"catalog": catalog(), "quantizer": PACKED}
        monkeypatch.setattr(parts, "make_cpu_linear", rounding)
    engine = make_device_engine(folder, **fields)
    for layer in device_runner(engine)._decoder.layers:
        linears = (layer.attention.entry, layer.attention.out, layer.mlp.entry, layer.mlp.down)
        assert {type(linear) for linear in linears} == {kind}
    # A number between two codes is rounded either way: then logits are a little different.
    prompts = [*PROMPTS, LONG]
    gaps = follow(engine, prompts, greedy(make_engine(folder, **fields), prompts, 12), CLOSE)
    assert len(gaps) <= 4


def rounding(weight: Weight, bias: torch.Tensor | None = None) -> LinearOp:
    if not isinstance(weight, GroupedWeight):
        return exact(weight, bias)
    assert weight.activations == "e4m3"
    return Rounding(weight, bias)


def with_inputs(writer: Writer, inputs: dict[str, Any]) -> Writer:
    group = {**writer.announced["config_groups"]["group_0"], "input_activations": inputs}
    announced = {**writer.announced, "config_groups": {"group_0": group}}
    return writer._replace(announced=announced)


def test_captured_steps_of_few_lines_allocate_no_room(
    make_device_engine: Make, device_runner: Callable[[Any], Any], tmp_path: Path
) -> None:
    """Where products write is as large at the end as when the model was loaded."""
    folder = tmp_path / "made"
    written(small(), folder, WRITERS["awq"])
    engine = make_device_engine(folder, catalog=catalog(), quantizer=AUTO)
    layer = device_runner(engine)._decoder.layers[0]
    before = addresses(layer.attention.out._room)
    answers(engine)
    assert addresses(layer.attention.out._room) == before


def addresses(room: DequantizeScratch) -> list[int]:
    """Where products write."""
    return [tensor.data_ptr() for tensor in (room.partial, room.arrived, room.dense)]
