"""Settings of experts in ``config.json``, from the metadata of GGUF files."""

from __future__ import annotations

from typing import Any

from gatewayd_engine.model.gguf.expansion.fields import GgufFields


def expert_values(fields: GgufFields, architecture: str, model_type: str) -> dict[str, Any]:
    """Return the fields of config.json that describe experts; none for a dense model.

    Args:
        fields: metadata.
        architecture: prefix of its keys.
        model_type: by transformers.

    Raises:
        LoadError: a value is missing or invalid.
    """
    if model_type not in _KINDS:
        return {}

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    values: dict[str, Any] = {
        "num_local_experts": fields.size(key("expert_count")),
        "num_experts_per_tok": fields.size(key("expert_used_count")),
    }
    kind = _KINDS[model_type]
    if kind in ("qwen", "qwen_shared", "deepseek", "deepseek_v2"):
        values["moe_intermediate_size"] = fields.size(key("expert_feed_forward_length"))
    match kind:
        case "qwen":
            # Released models say so in config.json; older files say nothing.
            values["norm_topk_prob"] = fields.flag(key("expert_weights_norm"), True)
        case "qwen_shared":
            size = fields.size(key("expert_shared_feed_forward_length"))
            values["shared_expert_intermediate_size"] = size
            values["norm_topk_prob"] = fields.flag(key("expert_weights_norm"), False)
        case "olmoe":
            values["norm_topk_prob"] = fields.flag(key("expert_weights_norm"), False)
        case "llama4":
            # A window of 0 would mean that there are no chunks.
            fields.optional_size(key("attention.sliding_window"))
            values |= {
                "intermediate_size": fields.size(key("expert_feed_forward_length")),
                "intermediate_size_mlp": fields.size(key("feed_forward_length")),
                "interleave_moe_layer_step": fields.size(key("interleave_moe_layer_step")),
                # Files do not tell; llama.cpp goes by this number, too.
                "use_qk_norm": values["num_local_experts"] != _LLAMA4_UNNORMED,
            }
        case "deepseek" | "deepseek_v2":
            values |= {
                "n_shared_experts": fields.optional_size(key("expert_shared_count")),
                "first_k_dense_replace": fields.size(key("leading_dense_block_count"), 0, least=0),
                "routed_scaling_factor": fields.number(key("expert_weights_scale"), 1.0),
                "norm_topk_prob": fields.flag(key("expert_weights_norm"), False),
                "n_group": fields.size(key("expert_group_count"), 1),
                "topk_group": fields.size(key("expert_group_used_count"), 1),
            }
            if kind == "deepseek_v2":
                if values["norm_topk_prob"]:
                    raise fields.wrong(key("expert_weights_norm"), "false where softmax chooses")
                is_limited = values["n_group"] > 1
                values["topk_method"] = "group_limited_greedy" if is_limited else "greedy"
    return values


_LLAMA4_UNNORMED = 128
"""Experts of the Llama 4 whose queries and keys are not normalised."""
_KINDS = {
    "mixtral": "mixtral",
    "qwen3_moe": "qwen",
    "qwen2_moe": "qwen_shared",
    "olmoe": "olmoe",
    "glm4_moe": "deepseek",
    "deepseek_v2": "deepseek_v2",
    "deepseek_v3": "deepseek",
    "llama4_text": "llama4",
    "gpt_oss": "gpt_oss",
}
"""Which settings the models with experts have."""
