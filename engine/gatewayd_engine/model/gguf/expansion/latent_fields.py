"""Latent attention (MLA) of ``config.json``, from the metadata of GGUF files."""

from __future__ import annotations

from typing import Any

from gatewayd_engine.model.gguf.expansion.fields import GgufFields
from gatewayd_engine.model.gguf.files import GgufFiles
from gatewayd_engine.model.gguf.names import DEEPSEEK

_SOFTMAX, _SIGMOID = 1, 2
"""Gating functions of routers, as llama.cpp numbers them."""
_CORRECTION = ".mlp.gate.e_score_correction_bias"
_ROTATED = f"{DEEPSEEK}.rope.dimension_count"
_TEMPERATURE = f"{DEEPSEEK}.attention.temperature_scale"


def latent_model_type(fields: GgufFields, files: GgufFiles) -> str:
    """Return the model type, by transformers, that has the experts of a file.

    Models that differ in nothing but the name are one: GLM-4.7-Flash is a DeepSeek-V3.

    Raises:
        LoadError: no model that is served has such experts.
    """
    if not fields.size(f"{DEEPSEEK}.expert_count", 0, least=0):
        return "youtu"
    has_correction = any(name.endswith(_CORRECTION) for name in files.tensors)
    expected = _SIGMOID if has_correction else _SOFTMAX
    key = f"{DEEPSEEK}.expert_gating_func"
    # Files lack it where config.json does not name the function.
    if fields.size(key, expected) != expected:
        raise fields.wrong(
            key,
            "2, sigmoid, in a file with tensors exp_probs_b"
            if has_correction
            else "1, softmax, in a file without tensors exp_probs_b",
        )
    return "deepseek_v3" if has_correction else "deepseek_v2"


def latent_values(fields: GgufFields, files: GgufFiles) -> dict[str, Any]:
    """Return the fields of config.json that describe the attention.

    Files have the lengths of cached keys and values, and with ``_mla`` those of a head. Files of
    before April 2025 have the lengths of a head alone, under the names of the others.

    Raises:
        LoadError: a value is missing or invalid.
    """
    if _TEMPERATURE in fields:
        raise fields.wrong(
            _TEMPERATURE, "absent, as queries that grow with their positions are not served"
        )
    split = f"{DEEPSEEK}.attention.key_length_mla" in fields
    ending = "_length_mla" if split else "_length"
    key = f"{DEEPSEEK}.attention.key{ending}"
    rotated, whole = fields.size(_ROTATED), fields.size(key)
    if whole <= rotated:
        raise fields.wrong(key, f"above {rotated}, {_ROTATED}")
    return {
        # Not the one KV head of the absorbed form.
        "num_key_value_heads": fields.size(f"{DEEPSEEK}.attention.head_count"),
        "head_dim": rotated,
        "q_lora_rank": fields.optional_size(f"{DEEPSEEK}.attention.q_lora_rank"),
        "kv_lora_rank": fields.size(f"{DEEPSEEK}.attention.kv_lora_rank"),
        "qk_nope_head_dim": whole - rotated,
        "qk_rope_head_dim": rotated,
        "v_head_dim": fields.size(f"{DEEPSEEK}.attention.value{ending}"),
        # The rows of a rotated pair are adjacent, as llama.cpp rotates them.
        "rope_interleave": True,
        "attention_bias": "model.layers.0.self_attn.kv_a_proj_with_mqa.bias" in files.tensors,
    }
