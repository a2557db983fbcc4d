"""Mapping of llama.cpp's tensor names to Hugging Face's. Imports no torch."""

from __future__ import annotations

import re

_NUMBER = "0|[1-9][0-9]{0,5}"
_NAME = re.compile(
    rf"(?:blk\.({_NUMBER})\.)?((?:nextn\.)?[a-z_]{{1,40}})(?:\.({_NUMBER}))?\.(weight|bias)"
)
_WHOLE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_OLMO = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GLM = {
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
    "ffn_up": "mlp.gate_up_proj",
}
_PHI = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
"""Projections that are fused in both naming schemes."""
_MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.*.w1",
    "ffn_up_exps": "block_sparse_moe.experts.*.w3",
    "ffn_down_exps": "block_sparse_moe.experts.*.w2",
}
_QWEN = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.*.gate_proj",
    "ffn_up_exps": "mlp.experts.*.up_proj",
    "ffn_down_exps": "mlp.experts.*.down_proj",
}
_QWEN2 = {
    **_QWEN,
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_SHARED = {
    **_QWEN,
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
}
_DEEPSEEK = {
    **_SHARED,
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
}
_GLM_EXPERTS = {**_SHARED, "post_attention_norm": "post_attention_layernorm"}
_GPT = {
    **_QWEN,
    "post_attention_norm": "post_attention_layernorm",
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
}
_LLAMA4 = {
    "ffn_gate": "feed_forward.gate_proj",
    "ffn_up": "feed_forward.up_proj",
    "ffn_down": "feed_forward.down_proj",
    "ffn_gate_inp": "feed_forward.router",
    "ffn_gate_exps": "feed_forward.experts.*.gate_proj",
    "ffn_up_exps": "feed_forward.experts.*.up_proj",
    "ffn_down_exps": "feed_forward.experts.*.down_proj",
    "ffn_gate_shexp": "feed_forward.shared_expert.gate_proj",
    "ffn_up_shexp": "feed_forward.shared_expert.up_proj",
    "ffn_down_shexp": "feed_forward.shared_expert.down_proj",
}
_STACKED = "_exps"
_DRAFT = "nextn."
"""Begins the names, within a layer that predicts further tokens, of what only such layers have."""

EACH = "*"
"""Placeholder of the expert index in the name of a tensor with all experts of a layer."""
FREQUENCIES = "rope_freqs.weight"
"""Not a weight: RoPE frequency factors, which follow from the settings in config.json."""
ONE_ROW = "mlp.shared_expert_gate.weight"
"""End of the names of matrices of one row, which files have as vectors."""
OF_HEADS = ("self_attn.k_b_proj.weight", "self_attn.v_b_proj.weight")
"""Ends of the names of matrices that files have as one for each head, in three dimensions."""
DEEPSEEK = "deepseek2"
GEMMA = "gemma2"
GEMMA3 = "gemma3"
GLM = "glm4"
GLM_EXPERTS = "glm4moe"
GPT = "gpt-oss"
OLMO = "olmo2"
OLMO_EXPERTS = "olmoe"
PHI = "phi3"
SMOLLM = "smollm3"
LLAMA = "llama"
LLAMA4 = "llama4"
QWEN2_EXPERTS = "qwen2moe"
QWEN_EXPERTS = "qwen3moe"
ARCHITECTURES = {
    LLAMA: ("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"),
    LLAMA4: ("Llama4ForCausalLM",),
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen3": ("Qwen3ForCausalLM",),
    QWEN2_EXPERTS: ("Qwen2MoeForCausalLM",),
    QWEN_EXPERTS: ("Qwen3MoeForCausalLM",),
    DEEPSEEK: (
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "YoutuForCausalLM",
    ),
    GEMMA: ("Gemma2ForCausalLM",),
    GEMMA3: ("Gemma3ForCausalLM",),
    GLM: ("Glm4ForCausalLM",),
    GLM_EXPERTS: ("Glm4MoeForCausalLM",),
    GPT: ("GptOssForCausalLM",),
    OLMO: ("Olmo2ForCausalLM", "Olmo3ForCausalLM"),
    OLMO_EXPERTS: ("OlmoeForCausalLM",),
    PHI: ("Phi3ForCausalLM",),
    SMOLLM: ("SmolLM3ForCausalLM",),
}
"""Supported llama.cpp architectures, with the Hugging Face architectures they may be."""


_OTHERS = {
    DEEPSEEK: _DEEPSEEK,
    GEMMA: _GEMMA,
    GEMMA3: _GEMMA,
    GLM: _GLM,
    GLM_EXPERTS: _GLM_EXPERTS,
    GPT: _GPT,
    LLAMA: _MIXTRAL,
    LLAMA4: _LLAMA4,
    OLMO: _OLMO,
    OLMO_EXPERTS: _QWEN,
    PHI: _PHI,
    QWEN2_EXPERTS: _QWEN2,
    QWEN_EXPERTS: _QWEN,
}
_WITH_DRAFTS = (DEEPSEEK, GLM_EXPERTS)


def renamed(name: str, architecture: str) -> str | None:
    """Translate a tensor's name to Hugging Face's; None for a name the architecture has not.

    Experts are stacked in one tensor, whose name then contains ``EACH``, or are separate tensors,
    as in files until 2024.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    layer, stem, expert, ending = found.groups()
    if layer is None:
        return f"{_WHOLE[stem]}.{ending}" if stem in _WHOLE and expert is None else None
    # An architecture's own names override: "ffn_norm" is another norm in Gemma.
    known = {**_LAYER, **_OTHERS.get(architecture, {})}
    whole = known.get(f"{stem}.{ending}")
    if whole is not None and expert is None:
        return f"model.layers.{layer}.{whole}"
    if stem.startswith(_DRAFT) and expert is None and architecture in _WITH_DRAFTS:
        return f"model.layers.{layer}.{stem}.{ending}"
    if expert is not None:
        # Files with one tensor for each expert use the stacked tensor's name without its ending.
        stem = f"{stem}{_STACKED}"
    if stem not in known:
        return None
    inside = known[stem] if expert is None else known[stem].replace(EACH, expert)
    return f"model.layers.{layer}.{inside}.{ending}"
