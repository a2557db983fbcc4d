"""Models of transformers in bfloat16: types of weights and buffers, and long contexts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from gatewayd_hooks.quantization import Stored
from gatewayd_hooks.testing.model_backends import DenseAttend
from gatewayd_model_transformers.blueprint import trace_model
from gatewayd_model_transformers.loading import load
from tests.engine.core.models.tiny_families import SIZES, families, write_tiny

LENGTH = 2000


class HalfWeights:
    """Tensors of a file for activations of bfloat16; matrices stay as they are."""

    def __init__(self, folder: Path) -> None:
        self._tensors = load_file(folder / "model.safetensors")
        self.folder = str(folder)
        self.stored = {name: Stored("F32", tuple(t.shape)) for name, t in self._tensors.items()}
        self.dtype, self.device = torch.bfloat16, "cpu"
        self.packed: dict[str, torch.dtype] = {}

    def read(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def pack(self, name: str, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        self.packed[f"{name}.weight"] = weight.dtype
        if bias is not None:
            self.packed[f"{name}.bias"] = bias.dtype
        return lambda x: torch.nn.functional.linear(x, weight, bias)

    def report(self, fraction: float) -> None:
        pass


def original(folder: Path, family: str) -> Any:
    """The model as transformers loads it."""
    kind: Any = getattr(transformers, families()[family])
    return kind.from_pretrained(folder, dtype=torch.bfloat16).eval()


@pytest.mark.parametrize("family", ["llama", "olmo2", "gpt_oss"])
def test_weights_and_buffers_have_the_types_of_transformers(family: str, tmp_path: Path) -> None:
    write_tiny(tmp_path, family)
    blueprint, weights = trace_model(str(tmp_path), None), HalfWeights(tmp_path)
    load(blueprint, weights)  # type: ignore[arg-type]
    theirs = original(tmp_path, family)
    named = blueprint.model.named_parameters(remove_duplicate=False)
    found = weights.packed | {name.replace(".inner.", "."): each.dtype for name, each in named}
    assert found == {
        name: each.dtype for name, each in theirs.named_parameters(remove_duplicate=False)
    }
    buffers = {name.replace(".inner.", "."): each for name, each in blueprint.model.named_buffers()}
    expected = dict(theirs.named_buffers())
    assert {name: each.dtype for name, each in buffers.items()} == {
        name: each.dtype for name, each in expected.items()
    }
    assert any(each.dtype == torch.float32 for each in buffers.values())
    for name, each in expected.items():
        assert torch.equal(buffers[name], each), name


def test_a_long_context_has_the_logits_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "max_position_embeddings", 4096)
    write_tiny(tmp_path, "llama")
    blueprint = trace_model(str(tmp_path), None)
    model = load(blueprint, HalfWeights(tmp_path))  # type: ignore[arg-type]
    ids = torch.randint(3, 320, (LENGTH,), generator=torch.Generator().manual_seed(3))
    at = torch.arange(LENGTH)
    dense = DenseAttend(blueprint.facts, model)
    dense.start(at)

    def attend(layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        return dense(layer, query.float(), key_value.float()).to(query.dtype)

    with torch.inference_mode():
        ours = model.logits(model.hidden(ids, at, attend)[-200:]).float()
        theirs = original(tmp_path, "llama")(ids[None], use_cache=False).logits[0, -200:].float()
    # Rounding of bfloat16 alone differs by 2 %, and changes close choices.
    assert (ours - theirs).abs().mean() < 0.05 * theirs.abs().mean()
    assert (ours.argmax(-1) == theirs.argmax(-1)).float().mean() > 0.9
