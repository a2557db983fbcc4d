"""Static scales of inputs and of KV in a checkpoint: tokens equal transformers' with them.

Engines compute in float64, as transformers does: nothing falls to the other side of two codes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gatewayd_engine.process.config import StrategyChoice
from tests.engine.core.conftest import build
from tests.engine.core.float64_engine import compute_in_float64
from tests.engine.core.models.test_formats import AUTO, catalog, written
from tests.engine.core.small_model import small
from tests.plugins.quantized.writers import WRITERS, Writer

Make = Callable[..., Path]
PLAIN = StrategyChoice("fp8", {"scale": "none"})
PROMPTS = ([5, 9, 31, 7, 7, 60, 2], [40, 3, 3, 3, 18])
COUNT = 12
LARGEST = 448.0


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_in_float64(monkeypatch)


def near(numbers: torch.Tensor, scale: float) -> torch.Tensor:
    """Rounded to codes of a scale, and back."""
    codes = (numbers.float() / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return codes.to(numbers.dtype) * scale


def theirs(folder: Path) -> Any:
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()


def greedy(model: Any, prompt: list[int]) -> list[int]:
    """Tokens that follow, computed anew each: nothing is kept."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(COUNT):
            logits = model(torch.tensor([ids]), use_cache=False).logits
            ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


def ours(folder: Path, **fields: Any) -> list[list[int]]:
    harness = build(folder, catalog(), dtype="float64", **fields)
    try:
        return [harness.generate(prompt, max_tokens=COUNT, ignore_eos=True) for prompt in PROMPTS]
    finally:
        harness.core.strategies.close()


INPUTS = 0.02
"""Far from what suits them: what is large is cut, and tokens are others."""
JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def integers(numbers: torch.Tensor, scale: float) -> torch.Tensor:
    """As ``near``, to whole numbers."""
    return (numbers.float() / scale).round().clamp(-128, 127).to(numbers.dtype) * scale


def static(name: str, kind: str) -> Writer:
    """A writer whose checkpoints say that inputs are static."""
    writer = WRITERS[name]
    inputs = {"num_bits": 8, "type": kind, "strategy": "tensor", "dynamic": False}
    group = {**writer.announced["config_groups"]["group_0"], "input_activations": inputs}
    return writer._replace(announced={**writer.announced, "config_groups": {"g": group}})


def fp8(suffix: str, **announced: Any) -> Writer:
    """One of fp8 with a scale for each matrix."""
    write = WRITERS["floats, one scale"].write

    def renamed(weight: Any) -> Any:
        tensors, numbers = write(weight)
        return {"weight": tensors["weight"], suffix: tensors["weight_scale"]}, numbers

    return Writer({"quant_method": "fp8", "activation_scheme": "static", **announced}, renamed)


STATIC: dict[str, tuple[Writer, str, StrategyChoice]] = {
    "floats": (static("floats, one scale", "float"), "input_scale", AUTO),
    "integers": (static("integers", "int"), "input_scale", AUTO),
    "fp8": (fp8("weight_scale"), "input_scale", AUTO),
    "fp8, packed": (
        fp8("weight_scale"),
        "input_scale",
        StrategyChoice("auto", {"fp8": {"packed": True}}),
    ),
    "fp8 of transformers": (
        fp8("weight_scale_inv", weight_block_size=None),
        "activation_scale",
        AUTO,
    ),
}


def checkpoint_of(name: str, folder: Path, inputs: float = INPUTS) -> dict[str, torch.Tensor]:
    """Write the small model with scales of several sizes for inputs; see ``written``."""
    writer, suffix, _ = STATIC[name]
    count = 0

    def write(weight: Any) -> Any:
        nonlocal count
        count += 1
        tensors, numbers = writer.write(weight)
        return {**tensors, suffix: torch.tensor(inputs * (1 + count % 3))}, numbers

    return written(small(), folder, writer._replace(write=write))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if "8 " in name or "," in name else [])
        for name in STATIC
    ],
)
def test_inputs_are_rounded_with_the_checkpoints_scales(name: str, tmp_path: Path) -> None:
    """Matrices of one input have the largest of their scales."""
    _, suffix, choice = STATIC[name]
    folder = tmp_path / "made"
    numbers = checkpoint_of(name, folder)
    tokens = ours(folder, quantizer=choice)
    stored = load_file(folder / "model.safetensors")
    model = theirs(small())
    model.load_state_dict(numbers, strict=False)
    plain = [greedy(model, prompt) for prompt in PROMPTS]
    rounded = integers if name == "integers" else near
    for path, part in model.named_modules():
        prefix, _, last = path.rpartition(".")
        if f"{path}.{suffix}" in stored:
            joint = next((parts for parts in JOINED if last in parts), (last,))
            scale = max(float(stored[f"{prefix}.{each}.{suffix}"]) for each in joint)
            part.register_forward_pre_hook(
                lambda part, given, scale=scale: (rounded(given[0], scale),)
            )
    wanted = [greedy(model, prompt) for prompt in PROMPTS]
    assert tokens == wanted
    assert wanted != plain


KEY, VALUE = 0.011, 0.004
"""Far from what suits them, too."""


def with_scales(folder: Path, names: tuple[str, str]) -> Path:
    """Add a scale of keys and one of values to each layer; of the second layer twice as large."""
    path = max(folder.glob("*.safetensors"))
    tensors = load_file(path)
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    for index in range(layers):
        for name, scale in zip(names, (KEY, VALUE), strict=True):
            tensors[f"model.layers.{index}.self_attn.{name}"] = torch.tensor(scale * (1 + index))
    save_file(tensors, path, {"format": "pt"})
    index_file = folder / "model.safetensors.index.json"
    if index_file.exists():
        found = json.loads(index_file.read_text())
        found["weight_map"] |= dict.fromkeys(tensors, path.name)
        index_file.write_text(json.dumps(found))
    return folder


@pytest.fixture
def rounding() -> str:
    """The name of an attention of transformers that rounds keys and values as pools do."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **more: Any) -> Any:
        times = 1 + module.layer_idx
        key, value = near(key, KEY * times), near(value, VALUE * times)
        eager = __import__(type(module).__module__, fromlist=["x"]).eager_attention_forward
        return eager(module, query, key, value, mask, **more)

    AttentionInterface.register("eager_rounding", attend)
    AttentionMaskInterface.register("eager_rounding", eager_mask)
    return "eager_rounding"


@pytest.mark.parametrize("name", ["llama", "llama_biases", "qwen3", "gemma2", "phi3"])
def test_keys_and_values_are_kept_with_the_checkpoints_scales(
    name: str,
    make_checkpoint: Make,
    rounding: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rotated keys, with norms of heads, biases, softcaps and windows, of joined matrices."""
    caplog.set_level(logging.INFO)
    made = make_checkpoint(tmp_path, name)
    model = theirs(made)
    without = [greedy(model, prompt) for prompt in PROMPTS]
    model.set_attn_implementation(rounding)
    wanted = [greedy(model, prompt) for prompt in PROMPTS]
    assert wanted != without
    with_scales(made, ("k_scale", "v_scale"))
    assert ours(made, kv_codec=PLAIN) == wanted
    assert "layers have the scales of the checkpoint" in caplog.text
    assert ours(made) == without
    assert "scales of keys and values are not used" in caplog.text
