"""What llama.cpp calls the tensors of a model, and what Hugging Face does. Imports no torch."""

from __future__ import annotations

import re

_NAME = re.compile(r"(?:blk\.(0|[1-9][0-9]{0,5})\.)?([a-z_]{1,40})\.(weight|bias)")
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
_PHI = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
"""Joined there as here."""

FREQUENCIES = "rope_freqs.weight"
"""Not a weight: what config.json says of long contexts, in numbers."""
GEMMA = "gemma2"
PHI = "phi3"
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "MistralForCausalLM"),
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen3": ("Qwen3ForCausalLM",),
    GEMMA: ("Gemma2ForCausalLM",),
    PHI: ("Phi3ForCausalLM",),
}
"""Those that are read, with Hugging Face's names of what they are."""


def renamed(name: str, architecture: str) -> str | None:
    """Hugging Face's name of a tensor; None for one that no architecture read here has."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    layer, stem, ending = found.groups()
    if layer is None:
        return f"{_WHOLE[stem]}.{ending}" if stem in _WHOLE else None
    known = {**_LAYER, **{GEMMA: _GEMMA, PHI: _PHI}.get(architecture, {})}
    return f"model.layers.{layer}.{known[stem]}.{ending}" if stem in known else None
