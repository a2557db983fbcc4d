"""Language models within multimodal checkpoints: settings, tensors and logits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.spec import UnsupportedModel, read_spec
from tests.engine.conftest import SIZES
from tests.engine.model.test_decoder import loaded, prompt

Ours = Callable[[Decoder, torch.Tensor], torch.Tensor]
Theirs = Callable[..., torch.Tensor]
VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
GEMMA: dict[str, Any] = {"sliding_window": 16, "head_dim": 16, "num_hidden_layers": 7}


def gemma3() -> Any:
    text = {**SIZES, **GEMMA, "tie_word_embeddings": True}
    return transformers.Gemma3Config(
        text_config=text, vision_config=VISION, mm_tokens_per_image=4, image_token_index=302
    )


def mistral3() -> Any:
    text = {**SIZES, "model_type": "mistral", "sliding_window": None, "head_dim": 24}
    vision = {**VISION, "model_type": "pixtral", "head_dim": 8}
    return transformers.Mistral3Config(
        text_config=text, vision_config=vision, image_token_index=302
    )


def written(config: Any, folder: Path) -> Path:
    torch.manual_seed(0)
    made: Any = transformers.AutoModelForImageTextToText.from_config(config)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
    made.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("config", [gemma3, mistral3])
def test_logits_are_those_of_transformers(
    config: Callable[[], Any], tmp_path: Path, our_logits: Ours
) -> None:
    folder, ids = written(config(), tmp_path), prompt(300)
    their: Any = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        expected = their(input_ids=ids[None]).logits[0]
    assert read_spec(folder).is_text_part
    torch.testing.assert_close(our_logits(loaded(folder), ids), expected, atol=5e-5, rtol=0)


def test_tensors_have_the_names_of_either_version_of_transformers(
    tmp_path: Path, our_logits: Ours
) -> None:
    folder, ids = written(gemma3(), tmp_path), prompt(300)
    expected = our_logits(loaded(folder), ids)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    old = "language_model.model."
    assert any(name.startswith(old) for name in tensors)
    renamed = {name.replace(old, "model.language_model."): each for name, each in tensors.items()}
    save_file(renamed, path)
    assert torch.equal(our_logits(loaded(folder), ids), expected)
    del renamed["model.language_model.norm.weight"]
    save_file(renamed, path)
    with pytest.raises(LoadError, match=r"missing tensors: model\.norm\.weight$"):
        loaded(folder)


RELEASE: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "eos_token_id": [1, 106],
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
}
"""The fields of a released model of 4 billion parameters."""


def test_settings_that_a_release_leaves_out_are_those_of_transformers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(RELEASE))
    spec = read_spec(tmp_path)
    their = transformers.Gemma3TextConfig(**RELEASE["text_config"])
    assert spec.eos_token_ids == (1, 106)
    assert spec.dtype == "bfloat16"
    for name in ("vocab_size", "num_hidden_layers", "head_dim", "hidden_size"):
        assert getattr(spec, name.replace("num_hidden", "num")) == getattr(their, name)
    assert (spec.num_heads, spec.num_kv_heads) == (8, 4)
    assert (spec.max_model_len, spec.norm_eps) == (131_072, 1e-6)
    assert spec.windows[:7] == (1024,) * 5 + (0, 1024)
    for window, rope in zip(spec.windows, spec.layer_ropes, strict=True):
        expected = their.rope_parameters["sliding_attention" if window else "full_attention"]
        assert (rope.kind, rope.theta) == (expected["rope_type"], expected["rope_theta"])
        assert rope.factor == expected.get("factor", 1.0)


@pytest.mark.parametrize(
    ("architecture", "text"),
    [
        ("Gemma3ForConditionalGeneration", {"model_type": "qwen2_vl_text"}),
        ("Gemma3ForConditionalGeneration", {}),
        # Releases leave out most sizes, as transformers' defaults, which are not known here.
        ("LlavaForConditionalGeneration", {"model_type": "llama"}),
    ],
)
def test_other_language_models_are_named(
    tmp_path: Path, architecture: str, text: dict[str, Any]
) -> None:
    config = {"architectures": [architecture], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match=f"{architecture} is not supported"):
        read_spec(tmp_path)


SCOUT: dict[str, Any] = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "text_config": {
        "attention_chunk_size": 8192,
        "attn_scale": 0.1,
        "attn_temperature_tuning": 4,
        "floor_scale": 8192,
        "head_dim": 128,
        "hidden_size": 5120,
        "interleave_moe_layer_step": 1,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "max_position_embeddings": 10_485_760,
        "model_type": "llama4_text",
        "no_rope_layers": [],
        "num_attention_heads": 40,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500_000.0,
        "use_qk_norm": True,
        "vocab_size": 202_048,
    },
    "torch_dtype": "bfloat16",
}
"""The fields of a release."""


@pytest.mark.parametrize(("tuning", "grows"), [(4, True), (True, True), (0, False), (None, True)])
def test_a_release_of_llama_4_is_read(tmp_path: Path, tuning: object, grows: bool) -> None:
    text = {**SCOUT["text_config"], "attn_temperature_tuning": tuning}
    (tmp_path / "config.json").write_text(json.dumps({**SCOUT, "text_config": text}))
    spec = read_spec(tmp_path)
    assert spec.max_model_len == 1 << 21  # of the ten million that it states
    assert (spec.query_scale is not None) == grows
    assert [rope.kind for rope in spec.layer_ropes[:4]] == ["llama3"] * 3 + ["none"]


def test_modules_of_an_announced_quantization_have_the_names_of_the_language_model(
    tmp_path: Path,
) -> None:
    announced = {
        "ignore": [
            "language_model.lm_head",
            r"re:language_model\.model\.layers\.0\..*",
            "vision_tower.layers.0",
        ],
        "config_groups": {"group_0": {"targets": ["model.language_model.layers.1.mlp.up_proj"]}},
        "bits": 8,
    }
    config = {**RELEASE, "quantization_config": announced}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = read_spec(tmp_path).quantization
    assert found is not None
    assert found.values == {
        "ignore": ["lm_head", r"re:model\.layers\.0\..*", "vision_tower.layers.0"],
        "config_groups": {"group_0": {"targets": ["model.layers.1.mlp.up_proj"]}},
        "bits": 8,
    }
