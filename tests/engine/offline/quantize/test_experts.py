"""Quantizing experts: each fitted on its own tokens, alone in memory."""

from __future__ import annotations

import functools
import gc
import json
import shutil
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gatewayd_engine.model.linears import select_cpu
from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.offline.quality.scheme_model import SchemeModel
from gatewayd_engine.offline.quantize.job import (
    REPORT,
    CheckpointWritten,
    QuantizeAdvanced,
    QuantizeJob,
    QuantizeStarted,
)
from gatewayd_engine.offline.quantize.layers import LayerTensors
from gatewayd_engine.offline.quantize.run import quantize
from gatewayd_engine.process.config import EngineConfig, StrategyChoice
from gatewayd_hooks.quantization import Fit, Site
from gatewayd_quant_awq.strategy import Awq
from gatewayd_quant_gptq.strategy import Gptq
from tests.engine.core.conftest import build
from tests.engine.offline.quantize.jobs import HOST, reason, stopped, told
from tests.engine.offline.quantize.test_run import dequantized, files

torch.set_num_threads(1)

Source = Callable[[str], Path]
IDS = torch.randint(2, 320, (8, 96), generator=torch.Generator().manual_seed(4)).tolist()
MODELS = ("mixtral", "qwen3_moe", "qwen2_moe", "glm4_moe", "deepseek_v3")
GROUPED_SIZES = {"q_lora_rank": 32, "v_head_dim": 12, "moe_intermediate_size": 48}
"""Of latent attention, so that every matrix has whole groups of 16 columns."""
SETTINGS: dict[str, dict[str, Any]] = {
    "awq": {"group_size": -1},
    "gptq": {"group_size": 16},
    "fp8": {},
    "sparse24": {},
}
SUFFIXES = {"fp8": "weight_scale", "sparse24": "weight"}
"""Of what a matrix of few bits is stored as, if not ``qweight``."""


@pytest.fixture(scope="module")
def source_of(
    make_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Source:
    """A checkpoint of two layers in one file; of Qwen the second has no experts."""

    @functools.cache
    def made(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        sizes = GROUPED_SIZES if name.startswith("deepseek") else {}
        return make_checkpoint(folder, name, num_hidden_layers=2, max_shard_size="1GB", **sizes)

    return made


def job(model: Path, out: Path, to: str, samples: list[list[int]], **changes: Any) -> QuantizeJob:
    made = QuantizeJob(str(model), str(out), StrategyChoice(to, SETTINGS[to]), samples, threads=1)
    return msgspec.structs.replace(made, **changes)


def experts_of(name: str) -> tuple[str, tuple[str, str, str]]:
    """Where a layer's router and experts are, and what gate, up and down are called."""
    if name == "mixtral":
        return "block_sparse_moe", ("w1", "w3", "w2")
    return "mlp", ("gate_proj", "up_proj", "down_proj")


def stack(folder: Path, name: str) -> None:
    """Store the experts of a layer as transformers 5 holds them."""
    tensors, spec = load_file(folder / "model.safetensors"), read_spec(folder)
    assert spec.moe is not None
    inside, names = experts_of(name)
    for layer in (i for i, has in enumerate(spec.moe.layers) if has):
        old, new = f"model.layers.{layer}.{inside}", f"model.layers.{layer}.mlp"
        gates, ups, downs = (
            [tensors.pop(f"{old}.experts.{i}.{part}.weight") for i in range(spec.moe.num_experts)]
            for part in names
        )
        joined = [torch.cat(pair) for pair in zip(gates, ups, strict=True)]
        tensors[f"{new}.gate.weight"] = tensors.pop(f"{old}.gate.weight")
        tensors[f"{new}.experts.gate_up_proj"] = torch.stack(joined)
        tensors[f"{new}.experts.down_proj"] = torch.stack(downs)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("to", SETTINGS)
def test_what_is_written_answers_as_transformers_with_the_same_numbers(
    to: str, name: str, source_of: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Kernels round what they multiply; they have tests of their own.
    for kernel in [name for name in vars(select_cpu) if name.startswith("fits_")]:
        monkeypatch.setattr(select_cpu, kernel, lambda weight: False)
    source, out, plain = source_of(name), tmp_path / "out", tmp_path / "plain"
    events = told(job(source, out, to, IDS))
    assert isinstance(events[-1], CheckpointWritten), events[-1]
    done = [event.done for event in events if isinstance(event, QuantizeAdvanced)]
    spec = read_spec(source)
    assert done == sorted(done)
    assert done[-1] == spec.num_layers
    # As other readers look for them: each expert's words, and routers as they were, by name.
    assert spec.moe is not None
    inside, parts = experts_of(name)
    tensors, routers = load_file(out / "model.safetensors"), []
    suffix = SUFFIXES.get(to, "qweight")
    for layer in (i for i, has in enumerate(spec.moe.layers) if has):
        prefix = f"model.layers.{layer}.{inside}"
        routers.append(f"{prefix}.gate")
        if spec.moe.shared is not None:
            routers += [f"{prefix}.{spec.moe.shared.gate}"] if spec.moe.shared.gate else []
            shared = f"{prefix}.{spec.moe.shared.name}"
            assert all(f"{shared}.{part}.{suffix}" in tensors for part in parts)
        assert tensors[f"{prefix}.gate.weight"].dtype == torch.float32
        for number in range(spec.moe.num_experts):
            assert all(f"{prefix}.experts.{number}.{part}.{suffix}" in tensors for part in parts)
    if spec.latent is not None:
        # Multiplied head by head, as floats.
        routers += [f"model.layers.{i}.self_attn.kv_b_proj" for i in range(spec.num_layers)]
    announced = json.loads((out / "config.json").read_text()).get("quantization_config")
    if to == "sparse24":
        words = torch.unflatten(tensors[f"{prefix}.experts.1.{parts[2]}.weight"], 1, (-1, 4))
        assert int((words != 0).sum(-1).amax()) == 2
    elif to == "gptq":
        (packed,) = announced["modules_in_block_to_quantize"]
        assert f"{inside}.experts.0.{parts[0]}" in packed
        assert f"{inside}.gate" not in packed
    else:
        assert set(announced["modules_to_not_convert"]) - {"lm_head"} == set(routers)

    if to == "sparse24":
        plain = out
    else:
        dequantized(out, plain)
    config = EngineConfig(
        model=str(out),
        scheduler=StrategyChoice("fcfs"),
        prefix_cache=None,
        eviction=StrategyChoice("lru"),
        preemption=StrategyChoice("recompute"),
        quantizer=StrategyChoice("auto"),
        threads=1,
        cpu_activations="float",
    )
    opened = SchemeModel(config, HOST, 64)
    ours = torch.cat(list(opened.logits(IDS[0])))
    opened.close()
    whole, model = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for folder in (source, plain)
    )
    prompts = [IDS[1][:70], IDS[2][:9], IDS[3][:33]]
    with torch.inference_mode():
        theirs, before = (each(torch.tensor(IDS[:1])).logits[0] for each in (model, whole))
        asked = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
        wanted = [model.generate(torch.tensor([p]), **asked)[0, -8:].tolist() for p in prompts]
    # All at once, in steps shorter than some of them.
    engine = build(
        out, quantizer=StrategyChoice("auto"), max_batch_tokens=48, cpu_activations="float"
    )
    sequences = [engine.submit(p, max_tokens=8, ignore_eos=True)[0] for p in prompts]
    answers = engine.run()
    engine.core.strategies.close()
    assert [answers[i].tokens for i in sequences] == wanted
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=2e-3)
    assert (theirs - before).square().mean() > 1e-6 * before.square().mean()


@pytest.mark.parametrize("strategy", [Awq, Gptq])
def test_an_expert_is_fitted_on_the_tokens_that_come_to_it(
    strategy: type[Awq | Gptq], source_of: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first layer, before anything was lost; who comes where says transformers."""
    source, sites = source_of("mixtral"), {}
    fit: Callable[[Any, Site], Fit] = strategy.fit

    def noting(self: Any, site: Site) -> Fit:
        sites[site.matrices[0].name] = site
        return fit(self, site)

    monkeypatch.setattr(strategy, "fit", noting)
    to = "awq" if strategy is Awq else "gptq"
    # Attention stays whole, so that what comes behind it is what it was.
    skip = ["*.self_attn.*"]
    assert isinstance(
        told(job(source, tmp_path / "out", to, IDS, skip=skip))[-1], CheckpointWritten
    )
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    inputs: list[torch.Tensor] = []
    block = model.model.layers[0].mlp
    block.register_forward_pre_hook(lambda module, given: inputs.append(given[0].flatten(0, 1)))
    with torch.inference_mode():
        scores = model(torch.tensor(IDS), output_router_logits=True).router_logits[0]
    chosen = scores.topk(2, -1).indices
    seen = 0
    for number in range(5):
        mine = inputs[0][(chosen == number).any(-1)].double()
        name = f"model.layers.0.block_sparse_moe.experts.{number}.w1"
        if len(mine) < 128:
            assert name not in sites
            continue
        gram = mine.t() @ mine / len(mine)
        torch.testing.assert_close(sites[name].gram, gram, rtol=1e-3, atol=1e-3)
        assert len(sites[name].inputs) == len(mine)
        seen += 1
    assert seen > 3


def test_experts_that_see_too_few_are_rounded_to_the_nearest_and_told(
    source_of: Source, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, out = source_of("mixtral"), tmp_path / "out"
    samples = [ids[:40] for ids in IDS]
    assert isinstance(told(job(source, out, "awq", samples))[-1], CheckpointWritten)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    with torch.inference_mode():
        routed = model(torch.tensor(samples), output_router_logits=True).router_logits
    wanted: dict[str, int] = {}
    for layer, scores in enumerate(routed):
        counts = Counter(scores.topk(2, -1).indices.flatten().tolist())
        for number in (i for i in range(5) if counts[i] < 128):
            prefix = f"model.layers.{layer}.block_sparse_moe.experts.{number}"
            wanted |= {f"{prefix}.{part}": counts[number] for part in ("w1", "w3", "w2")}
    assert 0 < len(wanted) < 3 * 5 * len(routed)
    report = json.loads((out / REPORT).read_text())
    assert report["saw_too_few"] == wanted
    plain = tmp_path / "plain"
    assert isinstance(told(job(source, plain, "awq", []))[-1], CheckpointWritten)
    nearest, made = (load_file(folder / "model.safetensors") for folder in (plain, out))
    for name in wanted:
        assert report["matrices"][name]["lost"] == report["matrices"][name]["nearest"]
        assert torch.equal(made[f"{name}.qweight"], nearest[f"{name}.qweight"])
    one = min(wanted, key=lambda name: wanted[name])
    said = f"experts.{one.split('.')[-2]}.gate_up_proj: only {wanted[one]} calibration tokens"
    assert said in caplog.text


def test_there_is_one_expert_of_floats_at_a_time(
    source_of: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: dict[int, str] = {}
    most = 0
    take = LayerTensors.tensor

    def noting(self: LayerTensors, name: str) -> torch.Tensor:
        nonlocal most
        tensor = take(self, name)
        if ".experts." in name:
            alive[id(tensor)] = name.rpartition(".experts.")[0] + name.split(".experts.")[1][0]
            weakref.finalize(tensor, alive.pop, id(tensor), None)
            gc.collect(0)
            most = max(most, len(set(alive.values())))
        return tensor

    monkeypatch.setattr(LayerTensors, "tensor", noting)
    for to in ("awq", "gptq", "fp8"):  # of what is thinned out floats are written
        out = tmp_path / to
        assert isinstance(told(job(source_of("mixtral"), out, to, IDS[:3]))[-1], CheckpointWritten)
    assert most == 1
    assert not alive


def test_what_was_ended_goes_on_to_the_same_bytes(source_of: Source, tmp_path: Path) -> None:
    source = source_of("qwen3_moe")
    whole, cut = (job(source, tmp_path / name, "gptq", IDS) for name in ("whole", "cut"))
    assert isinstance(told(whole)[-1], CheckpointWritten)
    with pytest.raises(RuntimeError):
        quantize(cut, HOST, stopped)
    assert told(msgspec.structs.replace(cut, resume=True))[0] == QuantizeStarted(1, 2)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


@pytest.mark.parametrize("name", MODELS)
def test_experts_in_one_tensor_are_written_one_by_one(
    name: str, source_of: Source, tmp_path: Path
) -> None:
    folder = source_of(name)
    stacked = Path(shutil.copytree(folder, tmp_path / "stacked"))
    stack(stacked, name)
    made = []
    for source in (folder, stacked):
        out = tmp_path / f"{source.name}-out"
        assert isinstance(told(job(source, out, "gptq", IDS[:4]))[-1], CheckpointWritten)
        made.append((out / "model.safetensors").read_bytes())
    assert made[0] == made[1]
    tensors = load_file(stacked / "model.safetensors")
    whole = min(name for name in tensors if ".mlp.experts.gate_up" in name)
    tensors[whole] = tensors[whole][:3].clone()
    save_file(tensors, stacked / "model.safetensors", {"format": "pt"})
    said = reason(job(stacked, tmp_path / "none", "gptq", []))
    assert said.startswith(f"model.safetensors: {whole} is [3, ")
