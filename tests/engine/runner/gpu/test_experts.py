"""MoE on a device: grouped matmul, captured for any routing, stacked as read."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.experts.base import ExpertKernels, Form, RowCodes
from gatewayd_engine.kernels.quantized.block_scales import GROUP, Blocks
from gatewayd_engine.kernels.quantized.packing import PackedWeight
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model import parts
from gatewayd_engine.model.assembly.linears import Quantize
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.linears.expert_stacks import Stack, form_of
from gatewayd_engine.model.linears.plugin_matmul import MatmulPlugin, MatmulPlugins
from gatewayd_engine.model.loading import loader
from gatewayd_engine.model.moe import GroupedExperts, MixtureOfExperts
from gatewayd_engine.model.parts import FusedParts, with_matmul_plugins
from gatewayd_engine.model.spec import ModelSpec, read_spec
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.runner.gpu import warmup
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_hooks.quantization import GroupedWeight, Matrix, SparseWeight, StaticWeight, Weight
from tests.engine.core.golden import golden_model
from tests.engine.core.models.test_tokens import compare
from tests.engine.kernels.weights import grouped
from tests.engine.runner.gpu.conftest import mixed_prompts
from tests.engine.runner.gpu.strict_capture import Recorded, RecordedWhole, beside
from tests.engine.runner.gpu.test_quantized import exact

Make = Callable[..., Any]
captured = pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)
FLOAT32, E4M3 = torch.float32, torch.float8_e4m3fn
CONFIG = {
    "architectures": ["MixtralForCausalLM"],
    "vocab_size": 32,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
}


def by_row(codes: Any) -> Quantize:
    def quantize(matrix: Matrix, weight: torch.Tensor) -> Weight:
        made = TorchKernels().quantize(weight, codes)
        kind: Any = "int8" if codes == torch.int8 else "e4m3"
        return GroupedWeight(made.codes[: len(weight)], made.scales, activations=kind)

    return quantize


def in_blocks(matrix: Matrix, weight: torch.Tensor) -> Weight:
    if len(weight) % GROUP:
        return weight
    tiles = torch.unflatten(torch.unflatten(weight, 1, (-1, GROUP)), 0, (-1, GROUP))
    scales = tiles.abs().amax((1, 3), keepdim=True) / 448
    codes = (tiles / scales).to(E4M3).flatten(0, 1).flatten(1)
    by_group = scales.flatten(1).repeat_interleave(GROUP, 0)
    return GroupedWeight(codes, by_group, activations="e4m3")


def in_bytes(matrix: Matrix, weight: torch.Tensor) -> Weight:
    made = by_row(E4M3)(matrix, weight)
    assert isinstance(made, GroupedWeight)
    return made._replace(activations="float")


def in_nibbles(matrix: Matrix, weight: torch.Tensor) -> Weight:
    wide = torch.unflatten(weight, 1, (-1, 32))
    scales = (wide.abs().amax(-1, keepdim=True) / 7).half().float()
    return GroupedWeight(
        (wide / scales).round().char().flatten(1), scales.squeeze(-1), None, 4
    )  # fmt: skip


FORMS: dict[str, tuple[Quantize | None, type]] = {
    "floats": (None, torch.Tensor),
    "e4m3 by row": (by_row(E4M3), RowCodes),
    "int8 by row": (by_row(torch.int8), RowCodes),
    "e4m3 in blocks": (in_blocks, Blocks),
    "e4m3 for floats": (in_bytes, PackedWeight),
    "4 bits": (in_nibbles, PackedWeight),
}


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return read_spec(tmp_path)


def decoder(
    spec: ModelSpec, quantize: Quantize | None, *, at_once: bool, kernels: Any = None
) -> Decoder:
    """The same random weights each time, with experts at once or one by one."""
    fused = FusedParts(kernels or TorchKernels())
    if not at_once:
        fused.experts = None
    return loader.dummy(spec, FLOAT32, "cpu", 3, parts=fused, quantize=quantize)


def mlp_of(made: Decoder) -> Any:
    return made.layers[0].mlp


@pytest.mark.parametrize("name", FORMS)
@torch.inference_mode()
def test_a_captured_layer_follows_its_router(name: str, spec: ModelSpec) -> None:
    quantize, form = FORMS[name]
    at_once, alone = (decoder(spec, quantize, at_once=each) for each in (True, False))
    mlp, loop = mlp_of(at_once), mlp_of(alone)
    assert isinstance(mlp, GroupedExperts)
    assert isinstance(loop, MixtureOfExperts)
    assert {type(stack.matrices.all) for stack in (mlp._gate_up, mlp._down)} == {form}
    assert (at_once.is_capturable, alone.is_capturable) == (True, False)
    assert at_once.num_parameters == alone.num_parameters
    # Codes take as much room; scales of packed ones in float32 if those of one expert do.
    assert at_once.weight_bytes == pytest.approx(alone.weight_bytes, rel=0.02)
    x, out = torch.zeros(2, 6, spec.hidden_size)
    replay = Recorded().pieces(lambda between: out.copy_(mlp(x)))
    seen = set()
    for step in range(3):
        # At last all tokens visit the same two.
        x.copy_(torch.randn(6 if step < 2 else 1, spec.hidden_size))
        replay(lambda number: None)
        wanted, (_, chosen) = loop(x), loop._router(x)
        seen.add(tuple(chosen.flatten().tolist()))
        # A number between two codes is rounded either way.
        bound = 2e-5 if form in (torch.Tensor, PackedWeight) else 2e-2
        torch.testing.assert_close(out, wanted, rtol=bound, atol=bound * float(wanted.std()))
    assert len(seen) == 3


@torch.inference_mode()
def test_launches_do_not_depend_on_who_visits_whom(spec: ModelSpec) -> None:
    calls: list[str] = []
    kernels: Any = TorchKernels()
    for name in (*vars(ExpertKernels), "quantize", "gated"):
        if not name.startswith("_") and name not in ("route", "sort_visits"):
            method = getattr(kernels, name)

            def noting(*args: Any, name: str = name, method: Any = method, **named: Any) -> Any:
                calls.append(name)
                return method(*args, **named)

            setattr(kernels, name, noting)
    mlp = mlp_of(decoder(spec, None, at_once=True, kernels=kernels))
    for x in (torch.randn(9, 256), torch.zeros(9, 256), torch.randn(1, 256)):
        calls.clear()
        mlp(x)
        assert calls == ["route_visits", "expert_gates", "expert_answers", "sum_visits"]


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch, flashinfer: SimpleNamespace) -> RecordedWhole:
    """Everything is noted but for what stand-ins compute on the host; few sizes are captured."""
    for name in ("gather", "sample"):
        beside(monkeypatch, TorchKernels, name)
    beside(monkeypatch, flashinfer.FlashAttention.captured.__globals__["_Step"], "__call__")
    monkeypatch.setattr(warmup, "token_counts", lambda most: [8, 24, 48])
    monkeypatch.setattr(warmup, "sizes", lambda max_lines: [1, 2, 4, 8])
    return RecordedWhole()


@captured
@pytest.mark.parametrize(
    "architecture", ["qwen3_moe", "qwen2_moe", "glm4_moe", "llama4", "gpt_oss", "gpt_oss_unbiased"]
)
def test_captured_steps_say_what_transformers_does(
    architecture: str,
    checkpoint: Callable[[str], Path],
    make_device_engine: Make,
    capture: RecordedWhole,
) -> None:
    folder = checkpoint(architecture)
    engine = make_device_engine(
        folder, page_size=2, kv_pages=180, max_batch_tokens=64, max_running=8
    )
    capture.replays.clear()
    compare(engine, golden_model(folder), mixed_prompts(12, 320, 120, 1), 10, must_preempt=None)
    # Whole steps, and layers with a piece after each.
    assert capture.replays.count(1) > 10
    assert read_spec(folder).num_layers + 1 in capture.replays


@captured
@pytest.mark.parametrize("architecture", ["mixtral"])
def test_experts_of_few_bits_say_what_the_cpu_does(
    architecture: str,
    checkpoint: Callable[[str], Path],
    make_engine: Make,
    make_device_engine: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts, "make_cpu_linear", exact)
    fields = {
        "quantizer": StrategyChoice("int4", {"group_size": 32}),
        "max_batch_tokens": 48,
        "cpu_activations": "float",
    }
    said = []
    for make in (make_device_engine, make_engine):
        engine = make(checkpoint(architecture), **fields)
        ids = [
            engine.submit(p, max_tokens=8, ignore_eos=True)[0] for p in mixed_prompts(6, 320, 60, 2)
        ]
        done = engine.run()
        said.append([done[i].tokens for i in ids])
        assert engine.core._runner._decoder.is_capturable is (make is make_device_engine)
    assert said[0] == said[1]


@captured
@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"quantizer": StrategyChoice("sparse24")}, "2:4 sparse"),
        (
            {"quantizer": StrategyChoice("int8"), "quantizer_skip": ["*.experts.3.down_proj"]},
            "of several formats",
        ),
    ],
)
def test_experts_that_are_multiplied_one_by_one_are_told_and_not_captured(
    fields: dict[str, Any],
    what: str,
    checkpoint: Callable[[str], Path],
    make_device_engine: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fractions: list[float] = []
    read = loader._Reader._report

    def noted(self: Any, name: str) -> None:
        report = self._progress
        self._progress = fractions.append
        read(self, name)
        self._progress = report

    monkeypatch.setattr(loader._Reader, "_report", noted)
    with caplog.at_level("WARNING"):
        engine = make_device_engine(checkpoint("qwen3_moe"), max_running=4, **fields)
    told = [record.message for record in caplog.records if "one at a time" in record.message]
    assert len(told) == 1
    assert f"experts of layer 0 are {what}" in told[0]
    runner = engine.core._runner
    assert (runner._graphs, runner._pieces) == (None, None)
    assert len(engine.generate([5, 6, 7], max_tokens=4, ignore_eos=True)) == 4
    assert max(fractions) == fractions[-1] == 1.0


def test_one_matrix_at_a_time_is_beside_its_stack(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint("mixtral")
    alive: list[Any] = []
    most = [0]
    settled = FusedParts(TorchKernels()).experts
    assert settled is not None
    form = type(settled).form

    def noted(self: Any, weight: Weight, dtype: torch.dtype) -> Form | None:
        assert isinstance(weight, torch.Tensor)
        alive.append(weakref.ref(weight))
        most[0] = max(most[0], sum(each() is not None for each in alive))
        return form(self, weight, dtype)

    monkeypatch.setattr(type(settled), "form", noted)
    loaded = loader.load(
        folder, read_spec(folder), FLOAT32, "cpu", lambda part: None, FusedParts(TorchKernels())
    )
    assert isinstance(mlp_of(loaded), GroupedExperts)
    assert len(alive) == 2 * 5 * loaded.spec.num_layers
    # The one that is read, and the one before it, which is let go once this one is there.
    assert most[0] <= 2


def test_factors_are_widened_for_the_expert_that_needs_it() -> None:
    kernels = TorchKernels()
    short = grouped("signed", 16, 64, 2)
    long = short._replace(scales=short.scales / 3)
    forms = [form_of(weight, FLOAT32) for weight in (short, long, short)]
    first = forms[0]
    assert isinstance(first, PackedWeight)
    assert first.scales.dtype == torch.float16
    stack = Stack(first, 3, 16, 64, kernels)
    assert all(
        stack.set_expert(number, form) for number, form in enumerate(forms) if form is not None
    )
    made = stack.matrices.all
    assert isinstance(made, PackedWeight)
    assert torch.equal(made.scales, torch.stack([w.scales.t() for w in (short, long, short)]))
    assert stack.nbytes == made.words.nbytes + made.scales.nbytes
    other = form_of(grouped("offsets", 16, 64, 2), FLOAT32)
    assert other is not None
    assert not stack.set_expert(1, other)


def test_what_kernels_of_experts_cannot_read_is_left_to_products_of_its_own() -> None:
    weight = torch.zeros(8, 8)
    assert form_of(weight, FLOAT32) is weight
    assert form_of(SparseWeight(weight), FLOAT32) is None
    assert form_of(StaticWeight(weight, "int8", 1.0), FLOAT32) is None
    odd = GroupedWeight(torch.zeros(8, 8).to(torch.float8_e5m2), torch.ones(8, 1))
    made = form_of(odd, torch.bfloat16)
    assert isinstance(made, torch.Tensor)
    assert made.dtype == torch.bfloat16


def test_plugins_are_asked_for_experts_of_few_bits() -> None:
    brought = with_matmul_plugins(
        FusedParts(TorchKernels()), MatmulPlugins([MatmulPlugin("theirs", None)])
    )
    experts = brought.experts
    assert experts is not None
    assert experts.form(grouped("signed", 16, 64, 2), FLOAT32) is None
    assert experts.form(torch.zeros(8, 8), FLOAT32) is not None


@torch.inference_mode()
def test_blocks_of_all_sizes_are_compiled_while_loading(
    spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[Any] = []
    sort_visits = TorchKernels.sort_visits

    def noted(self: Any, chosen: torch.Tensor, num_experts: int, lines: Any = None) -> Any:
        sizes.append(lines)
        return sort_visits(self, chosen, num_experts, lines)

    monkeypatch.setattr(TorchKernels, "sort_visits", noted)
    decoder(spec, None, at_once=True)
    assert sizes[-4:] == [16, 32, 64, 128]


def test_tokens_of_measured_steps_visit_different_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[StepBatch] = []
    runner: Any = SimpleNamespace(
        max_tokens=64,
        max_len=100,
        device=torch.device("cuda"),
        logits=torch.empty(1, 50),
        launch=batches.append,
    )
    monkeypatch.setattr(
        warmup, "launch_bound", lambda counts, launch, wait: [launch(count) for count in counts]
    )
    warmup._mixed_sizes(runner)
    assert [len(set(batch.ids.tolist())) for batch in batches] == [16, 32, 50]
    assert max(batches[-1].ids) == 49
