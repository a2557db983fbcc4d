"""Tiny random checkpoints of the families of transformers, made by shrinking their sizes."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "dff"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("head_dim", "global_head_dim", "v_head_dim", "qk_nope_head_dim"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 512),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 96),
    "vocab_size": 320,
    "num_key_value_heads": 2,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "sliding_window": 24,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "is_decoder": True,
    # Tables of further embeddings.
    "vocab_size_per_layer_input": 320,
    "pronunciation_vocab_size": 320,
    "shape_vocab_size": 320,
    "moe_num_experts": 4,
}
"""Sizes, under all names that configurations have for them."""
_KINDS_OF_LAYERS = ["sliding_attention", "full_attention"] * 2
MORE: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "layer_types": _KINDS_OF_LAYERS,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10_000.0} for kind in _KINDS_OF_LAYERS
        },
    },
    "dbrx": {"attn_config": {"rope_theta": 10_000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "gemma3n_text": {"num_kv_shared_layers": 2, "layer_types": _KINDS_OF_LAYERS},
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            "num_kv_shared_layers": 4,
        }
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "codegen": {"rotary_dim": 8},
    "dots1": {"moe_intermediate_size": 48, "n_shared_experts": 1},
    "gptj": {"rotary_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 24},
    "llama4_text": {"attention_chunk_size": 32, "interleave_moe_layer_step": 2},
    "longcat_flash": {"head_dim": 8},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "reformer": {"axial_pos_embds_dim": (32, 32), "axial_pos_shape": (16, 32)},
    # transformers clears the row of the padding token, which a tied head has, on loading.
    "youtu": {"pad_token_id": None},
    "zamba2": {"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}
"""Fields of single families."""
MOST_PARAMETERS = 20_000_000


class NoTinyModel(Exception):
    """No small model of a family can be made generically; the message says why."""


def families() -> dict[str, str]:
    """Class of the causal language model of every ``model_type`` of transformers."""
    from transformers.models.auto import modeling_auto

    names: dict[str, Any] = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return {key: name if isinstance(name, str) else name[0] for key, name in names.items()}


def tiny_config(family: str) -> Any:
    """A configuration of a family.

    Raises:
        NoTinyModel: its class accepts none of these sizes.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        config = _sized(CONFIG_MAPPING[family], MORE.get(family, {}))
    except Exception as error:
        raise NoTinyModel(_first_line(error)) from error
    config.architectures = [families()[family]]
    return config


def _sized(kind: Any, more: Mapping[str, Any]) -> Any:
    """A small configuration of a class, and of those in it; ``more`` has their fields by name."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    fields = {*inspect.signature(kind.__init__).parameters, *kind.attribute_map}
    fields |= set(getattr(kind, "__dataclass_fields__", ()))
    values = {key: value for key, value in SIZES.items() if key in fields}
    # An alias and what it stands for are one field.
    values = {key: value for key, value in values.items() if key not in kind.attribute_map} | {
        target: values[key] for key, target in kind.attribute_map.items() if key in values
    }
    if "kv_lora_rank" in fields:
        values["num_key_value_heads"] = 4
    for name, inner in kind.sub_configs.items():
        own = more.get(name, {})
        if inner is AutoConfig:
            # Of those that may be of any class, the default.
            usual = own.get("model_type") or getattr(
                getattr(kind(), name, None), "model_type", None
            )
            inner = CONFIG_MAPPING[usual] if usual else None
        if inner is not None:
            values[name] = _sized(inner, own)
    return kind(**values | {key: each for key, each in more.items() if key not in kind.sub_configs})


def write_tiny(folder: Path, family: str) -> int:
    """Write a random checkpoint of a family, float32, whose best logits stand apart.

    Returns:
        Number of its parameters.

    Raises:
        NoTinyModel: none can be made.
    """
    import transformers

    config = tiny_config(family)
    kind: Any = getattr(transformers, families()[family])
    whole = config
    # Refused or not, whatever can be made of it.
    whole.save_pretrained(folder)
    if kind.config_class is config.sub_configs.get("text_config"):
        config = config.get_text_config()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.device("meta"):
                count: int = sum(each.numel() for each in kind._from_config(config).parameters())
            if count > MOST_PARAMETERS:
                raise NoTinyModel(f"its parts that no size shrinks have {count:,} parameters")
            torch.manual_seed(0)
            model = kind._from_config(config, dtype=torch.float32).eval()
    except NoTinyModel:
        raise
    except Exception as error:
        raise NoTinyModel(_first_line(error)) from error
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2:
                parameter.copy_(noise * 1.5 * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(noise * 0.3)
    model.save_pretrained(folder)
    if whole is not config:
        whole.save_pretrained(folder)
    return count


def best_tokens(folder: Path, family: str, tokens: list[int], prompt_len: int) -> list[int]:
    """Tokens that transformers finds likeliest after each prefix of ``tokens`` from a prompt on."""
    import transformers

    kind: Any = getattr(transformers, families()[family])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([tokens[:-1]]), use_cache=False).logits[0]
    found: list[int] = logits[prompt_len - 1 :].argmax(-1).tolist()
    return found


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:160] or type(error).__name__
