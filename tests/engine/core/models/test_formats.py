"""Quantized formats: the embedded model answers as transformers with the same weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gatewayd_engine.model import embedded
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.host.catalog import Catalog, Entry
from tests.engine.core.conftest import build
from tests.engine.core.small_model import small
from tests.plugins.quantized.writers import WRITERS, Writer

METHODS = ("awq", "gptq", "compressed_tensors", "fp8")
AUTO = StrategyChoice("auto")
COUNT = 8
CLOSE = 0.05
"""How far apart two logits may be and still change places: kernels of packed codes round what they
multiply to bfloat16. One did of those tested, 0.023 below the best."""
PROMPTS = (
    "def read(path):\n    with open(",
    "class Stack:\n    def push(self, item):\n",
    "import os\n",
)


def catalog() -> Catalog:
    """What is installed, and the formats."""
    names = {f"quantizer.{method}" for method in METHODS}
    ours = [
        Entry("quantizer", method, "gatewayd", "0.1.0", f"gatewayd_quant_{method}")
        for method in METHODS
    ]
    others = [e for e in Catalog.installed().entries if f"{e.kind}.{e.name}" not in names]
    return Catalog([*ours, *others])


def written(source: Path, folder: Path, writer: Writer) -> dict[str, torch.Tensor]:
    """Write a checkpoint in a format.

    Returns:
        The numbers that it means, by the names of transformers.
    """
    folder.mkdir()
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = writer.announced
    (folder / "config.json").write_text(json.dumps(config))
    stored: dict[str, torch.Tensor] = {}
    numbers: dict[str, torch.Tensor] = {}
    for shard in source.glob("*.safetensors"):
        for name, tensor in load_file(shard).items():
            numbers[name] = tensor.float()
            if tensor.dim() == 2 and ".layers." in name:
                tensors, meant = writer.write(tensor.float().numpy())
                stem = name.removesuffix(".weight")
                stored |= {f"{stem}.{suffix}": each for suffix, each in tensors.items()}
                numbers[name] = torch.from_numpy(meant)
            else:
                stored[name] = tensor
    save_file(stored, folder / "model.safetensors")
    return numbers


@pytest.fixture(scope="module", params=["small", pytest.param("nano", marks=pytest.mark.slow)])
def source(request: pytest.FixtureRequest) -> Path:
    """The first layers of the embedded model, and once all of them."""
    return small() if request.param == "small" else embedded.folder("nano")


@pytest.fixture(scope="module")
def theirs(source: Path) -> Any:
    """Transformers' own model of the embedded one, whose numbers are changed from test to test."""
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    return auto.from_pretrained(source, dtype=torch.float32).eval()


@pytest.mark.parametrize("name", WRITERS)
def test_tokens_are_those_of_transformers(
    name: str, source: Path, theirs: Any, tmp_path: Path
) -> None:
    from tokenizers import Tokenizer

    writer = WRITERS[name]
    numbers = written(source, tmp_path / "made", writer)
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    prompts = [tokenizer.encode(text).ids for text in PROMPTS]
    harness = build(tmp_path / "made", catalog(), quantizer=AUTO)
    try:
        assert harness.info.strategies["quantizer"] == writer.method
        ids = [harness.submit(p, max_tokens=COUNT, ignore_eos=True)[0] for p in prompts]
        answers = harness.run()
    finally:
        harness.core.strategies.close()
    missing, unexpected = theirs.load_state_dict(numbers, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])  # it is the embedding
    for prompt, sequence in zip(prompts, ids, strict=True):
        tokens = answers[sequence].tokens
        assert len(tokens) == COUNT
        with torch.inference_mode():
            logits = theirs(torch.tensor([prompt + tokens])).logits[0]
        given = logits[len(prompt) - 1 : -1]
        chosen = given.gather(1, torch.tensor(tokens).unsqueeze(1))
        assert (given - chosen).max() <= CLOSE
