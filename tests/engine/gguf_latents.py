"""Latent attention (MLA) as GGUF files have it: metadata, and two matrices a head for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

NAMES = {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.k_b_proj": "attn_k_b", "self_attn.v_b_proj": "attn_v_b",
}  # fmt: skip
OLD: dict[str, Any] = {
    "deepseek2.attention.key_length_mla": None,
    "deepseek2.attention.value_length_mla": None,
    "deepseek2.attention.key_length": 20,
    "deepseek2.attention.value_length": 10,
    "deepseek2.attention.head_count_kv": 4,
}
"""What differs in the metadata of files of before April 2025, for the sizes of ``LATENT``."""
_WHOLE, _KEYS, _VALUES = ".kv_b_proj.weight", ".k_b_proj.weight", ".v_b_proj.weight"


def facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the metadata say of a config.json; nothing where attention is not latent."""
    if "kv_lora_rank" not in config:
        return {}
    rank, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    queries = {} if config["q_lora_rank"] is None else {"q_lora_rank": config["q_lora_rank"]}
    lengths = {
        **queries,
        "kv_lora_rank": rank,
        "head_count_kv": 1,
        "key_length": rank + rotated,
        "value_length": rank,
        "key_length_mla": config["qk_nope_head_dim"] + rotated,
        "value_length_mla": config["v_head_dim"],
    }
    return {
        **{f"attention.{key}": length for key, length in lengths.items()},
        "rope.dimension_count": rotated,
        "expert_shared_count": 0,
    }


def apart(tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors with the matrices of keys and values apart, those of keys transposed."""
    made = dict(tensors)
    for name in [name for name in tensors if name.endswith(_WHOLE)]:
        by_head = torch.unflatten(made.pop(name), 0, (config["num_attention_heads"], -1))
        parts = [config["qk_nope_head_dim"], config["v_head_dim"]]
        keys, values = torch.split(by_head, parts, 1)
        stem = name.removesuffix(_WHOLE)
        made |= {f"{stem}{_KEYS}": keys.transpose(1, 2), f"{stem}{_VALUES}": values}
    return made


def joined(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inverse of ``apart``."""
    made = dict(tensors)
    for name in [name for name in tensors if name.endswith(_KEYS)]:
        stem = name.removesuffix(_KEYS)
        parts = (made.pop(name).transpose(1, 2), made.pop(f"{stem}{_VALUES}"))
        made[f"{stem}{_WHOLE}"] = torch.cat(parts, 1).flatten(0, 1)
    return made
