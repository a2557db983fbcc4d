"""Low-bit experts: tokens equal transformers' with the dequantized weights.

Prompts are longer than a step and asked all at once, so experts get tokens of chunks and of several
sequences. What a kernel rounds before it multiplies is rounded there too, but for routers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.quantization import GroupedWeight, Matrix, SparseWeight
from gatewayd_hooks.strategy import Kind
from tests.engine.core.conftest import CATALOG, build, mixed_prompts
from tests.engine.gguf_files import convert

HOST = PluginHost(CATALOG)
Linear = Callable[..., torch.Tensor]
PROMPTS = [prompt for prompt in mixed_prompts(7, 320, 130, 2) if len(prompt) > 5]
NEW_TOKENS = 10
HEADS = ("lm_head",)
ROUTERS = (".gate", ".shared_expert_gate")
MODELS = ("mixtral", "qwen3_moe", "qwen2_moe", "glm4_moe")


def int8_inputs(linear: Linear) -> Linear:
    """Inputs have steps of their largest number's 127th, row by row."""

    def rounding(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        steps = x.abs().amax(-1, keepdim=True).mul(1 / 127).clamp_min(1e-38)
        return linear((x / steps).round() * steps, weight, bias)

    return rounding


class Scheme(NamedTuple):
    """A quantizer, whether the head is rounded, and what its product does to inputs."""

    choice: StrategyChoice
    has_head: bool = True
    inputs: Callable[[Linear], Linear] | None = None


SCHEMES = {
    "int8": Scheme(StrategyChoice("int8"), inputs=int8_inputs),
    "int4": Scheme(StrategyChoice("int4", {"group_size": 32}), False),
    "int4, all, even": Scheme(
        StrategyChoice("int4", {"group_size": 32, "symmetric": True, "head": True})
    ),
    "fp8": Scheme(StrategyChoice("fp8")),
    "fp8 in bytes": Scheme(StrategyChoice("fp8", {"packed": True})),
    "sparse24": Scheme(StrategyChoice("sparse24"), False),
}


@pytest.fixture(scope="module")
def source(
    request: pytest.FixtureRequest,
    make_checkpoint: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A checkpoint of two layers; of Qwen the second has no experts."""
    sizes = {"num_hidden_layers": 2, "max_shard_size": "1GB"}
    if request.param != "mixtral":
        sizes["moe_intermediate_size"] = 64
    if request.param == "qwen2_moe":
        sizes["shared_expert_intermediate_size"] = 96
    return make_checkpoint(tmp_path_factory.mktemp(request.param), request.param, **sizes)


def meant(choice: StrategyChoice, name: str, weight: torch.Tensor) -> torch.Tensor:
    """The numbers that a quantizer makes of a matrix, whatever it is joined with."""
    settings = {**choice.settings, **({"packed": True} if choice.name == "fp8" else {})}
    strategy: Any = HOST.strategy(Kind.QUANTIZER, choice.name, settings)
    made = strategy.quantize(Matrix(name, *weight.shape), weight)
    if isinstance(made, SparseWeight):
        values: torch.Tensor = made.values
        return values
    assert isinstance(made, GroupedWeight)
    groups = torch.unflatten(made.codes.float(), 1, (made.scales.shape[1], -1))
    numbers = groups * made.scales.unsqueeze(-1)
    return (numbers if made.offsets is None else numbers + made.offsets.unsqueeze(-1)).flatten(1)


def meant_of_experts(choice: StrategyChoice, name: str, weights: torch.Tensor) -> torch.Tensor:
    """The numbers that a quantizer makes of transposed matrices, one of each expert."""
    return torch.stack([meant(choice, name, each.t().contiguous()).t() for each in weights])


@contextmanager
def rounding(scheme: Scheme, config: dict[str, Any]) -> Iterator[None]:
    """Let transformers round what the products of a scheme round."""
    linear, functional = torch.nn.functional.linear, torch.nn.functional
    rounded = linear if scheme.inputs is None else scheme.inputs(linear)
    # Routers, and the gate of a shared expert.
    left = {config.get(key) for key in ("num_local_experts", "num_experts", "n_routed_experts")}
    left.add(1)
    left |= set() if scheme.has_head else {config["vocab_size"]}

    def chosen(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        return (linear if len(weight) in left else rounded)(x, weight, bias)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "linear", chosen)
        yield


def theirs(folder: Path) -> list[list[int]]:
    """Greedy continuations of all prompts, by transformers."""
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    # Experts one after the other: the other ways round by kernels of their own.
    model = auto.from_pretrained(folder, dtype=torch.float32, experts_implementation="eager")
    asked = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None}
    with torch.inference_mode():
        made = [model.generate(torch.tensor([prompt]), **asked)[0] for prompt in PROMPTS]
    return [all_.tolist()[-NEW_TOKENS:] for all_ in made]


def answers(model: Path, choice: StrategyChoice) -> list[list[int]]:
    """What an engine says to all prompts at once, in steps shorter than some of them."""
    # By default, compiled kernels round activations more finely, 32 with one scale.
    engine = build(
        model, quantizer=choice, max_batch_tokens=48, prefix_cache=None, cpu_activations="float"
    )
    ids = [engine.submit(p, max_tokens=NEW_TOKENS, ignore_eos=True)[0] for p in PROMPTS]
    said = engine.run()
    engine.core.check()
    engine.core.strategies.close()
    return [said[i].tokens for i in ids]


@pytest.mark.parametrize("source", MODELS, indirect=True)
@pytest.mark.parametrize("name", SCHEMES)
def test_what_is_rounded_while_loading_answers_as_its_numbers_do(
    name: str, source: Path, tmp_path: Path
) -> None:
    scheme, config = SCHEMES[name], json.loads((source / "config.json").read_text())
    kept = () if scheme.has_head else HEADS
    numbers = {
        full: meant(scheme.choice, full.removesuffix(".weight"), weight)
        if weight.dim() == 2
        and not full.removesuffix(".weight").endswith((*ROUTERS, "embed_tokens", *kept))
        else weight
        for full, weight in load_file(source / "model.safetensors").items()
    }
    shutil.copy(source / "config.json", tmp_path)
    save_file(numbers, tmp_path / "model.safetensors", {"format": "pt"})
    with rounding(scheme, config):
        wanted = theirs(tmp_path)
    assert answers(source, scheme.choice) == wanted


@pytest.mark.parametrize("source", ["gpt_oss", "llama4"], indirect=True)
@pytest.mark.parametrize("name", ["int4", "fp8 in bytes", "sparse24"])
def test_experts_in_one_tensor_answer_as_their_numbers_do(
    name: str, source: Path, tmp_path: Path
) -> None:
    scheme = SCHEMES[name]
    kept = () if scheme.has_head else HEADS

    def rounded(full: str, weight: torch.Tensor) -> torch.Tensor:
        if weight.dim() == 3:
            return meant_of_experts(scheme.choice, full, weight)
        left = (
            ".router.weight",
            "embed_tokens.weight",
            "_bias",
            *(f"{one}.weight" for one in kept),
        )
        is_left = weight.dim() != 2 or full.endswith(left)
        return weight if is_left else meant(scheme.choice, full, weight)

    tensors = load_file(source / "model.safetensors")
    numbers = {full: rounded(full, weight).contiguous() for full, weight in tensors.items()}
    shutil.copy(source / "config.json", tmp_path)
    save_file(numbers, tmp_path / "model.safetensors", {"format": "pt"})
    assert answers(source, scheme.choice) == theirs(tmp_path)


@pytest.mark.parametrize("source", MODELS[:2], indirect=True)
def test_a_gguf_file_answers_as_its_numbers_do(source: Path, tmp_path: Path) -> None:
    folder, plain = tmp_path / "gguf", tmp_path / "plain"
    folder.mkdir()
    plain.mkdir()
    architecture = "llama" if "mixtral" in source.name else "qwen3moe"
    numbers = convert(source, folder, architecture, ("Q8_0", "Q4_0", "F16"))
    shutil.copy(source / "config.json", plain)
    save_file({n: t.contiguous() for n, t in numbers.items()}, plain / "model.safetensors")
    wanted = theirs(plain)
    assert answers(folder, StrategyChoice("auto")) == wanted
