"""gpt-oss with experts in MXFP4, as released: tokens equal transformers' with the same numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.host.catalog import Catalog, Entry
from tests.engine.core.conftest import CATALOG, build, mixed_prompts
from tests.engine.core.golden import golden_model

MXFP4 = Entry("quantizer", "mxfp4", "gatewayd", "0.1.0", "gatewayd_quant_mxfp4")
OURS = Catalog([MXFP4, *(entry for entry in CATALOG.entries if entry.plugin != MXFP4.plugin)])
ANNOUNCED = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
NEW_TOKENS = 10


@pytest.fixture(scope="module")
def folders(
    make_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A checkpoint in MXFP4, and the same numbers as floats."""
    plain = make_checkpoint(
        tmp_path_factory.mktemp("plain"), "gpt_oss", max_shard_size="1GB", num_hidden_layers=2
    )
    packed = tmp_path_factory.mktemp("packed")
    generator = torch.Generator().manual_seed(5)
    # Imports triton, which tests of kernels have to do first.
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors = load_file(plain / "model.safetensors")
    words = dict(tensors)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = words.pop(name).shape
        blocks = torch.randint(
            256, (experts, rows, columns // 32, 16), dtype=torch.uint8, generator=generator
        )
        # About as large as the floats that they replace.
        scales = torch.randint(
            122, 125, (experts, rows, columns // 32), dtype=torch.uint8, generator=generator
        )
        words |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        tensors[name] = convert_moe_packed_tensors(blocks, scales).float().contiguous()
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    save_file(words, packed / "model.safetensors", {"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps({**config, "quantization_config": ANNOUNCED}))
    return packed, plain


def opened(folder: Path) -> Any:
    return build(
        folder,
        catalog=OURS,
        quantizer=StrategyChoice("auto"),
        max_batch_tokens=48,
        cpu_activations="float",
    )


def test_released_experts_answer_as_their_numbers_do(folders: tuple[Path, Path]) -> None:
    packed, plain = folders
    engine, model = opened(packed), golden_model(plain)
    prompts = [prompt for prompt in mixed_prompts(7, 320, 130, 2) if len(prompt) > 5]
    ids = [engine.submit(p, max_tokens=NEW_TOKENS, ignore_eos=True)[0] for p in prompts]
    answers = engine.run()
    for prompt, number in zip(prompts, ids, strict=True):
        assert answers[number].tokens == model.continued(prompt, NEW_TOKENS, ())
    whole = build(plain)
    # Codes of a byte, where the same numbers as floats have two: that is all that bfloat16 holds.
    experts = 2 * 6 * 3 * 64 * 96
    assert whole.info.weight_bytes - engine.info.weight_bytes > 0.85 * experts
    for each in (engine, whole):
        each.core.strategies.close()


def test_a_stacked_tensor_of_another_shape_is_named(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    packed, _ = folders
    shutil.copy(packed / "config.json", tmp_path)
    words = load_file(packed / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj_scales"
    words[name] = words[name][:, :, :2].contiguous()
    save_file(words, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(LoadError, match=rf"{name} is \[6, 64, 2\], not \[6, 64, 3\]"):
        opened(tmp_path)
