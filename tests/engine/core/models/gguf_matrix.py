"""Tiny GGUF models of every native architecture, in any types of weights, and their oracle."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save_file

from gatewayd_engine.model.gguf.expansion.model_folder import expanded
from gatewayd_engine.model.gguf.header import read_header
from gatewayd_engine.process.config import StrategyChoice
from tests.engine.conftest import GROUPED, YARN_ROPE, write_checkpoint
from tests.engine.core.conftest import build
from tests.engine.core.models.tiny_families import best_tokens
from tests.engine.gguf_blocks import BLOCKS
from tests.engine.gguf_files import convert

TYPES = (*BLOCKS, "F16", "BF16", "F32")
_SIZES: dict[str, Any] = {
    # Whole blocks of every type, experts and attention output too.
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_hidden_layers": 2,
    "tie_word_embeddings": False,
    "max_shard_size": "1GB",
}
_TOKENS = [f"token {i}" for i in range(318)]
_TOKENIZER: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": ["<unk>", "</s>", *_TOKENS],
    "tokenizer.ggml.token_type": [2, 3, *[1] * len(_TOKENS)],
    "tokenizer.ggml.merges": [],
    "tokenizer.ggml.eos_token_id": 1,
}
_LATENT = {
    "kv_lora_rank": 256,
    "q_lora_rank": 256,
    "qk_nope_head_dim": 256,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
    "num_key_value_heads": 4,
}
_PROMPT = [1, *range(60, 100)]
"""Longer than any window."""
_NEW_TOKENS = 16


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """An architecture and how its file differs.

    Attributes:
        checkpoint: the variant of ``tests/engine/conftest.py``.
        name: in ``general.architecture``.
        model_type: by transformers.
        sizes: fields of config.json.
        facts: of the file's metadata, beside those of all architectures.
        full_interval: every such layer attends to all positions, the others have a window; 0
            where no list says so.
        least_layers: so many show what is particular to some of them.
    """

    checkpoint: str
    name: str
    model_type: str
    sizes: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    full_interval: int = 0
    least_layers: int = 2


ARCHITECTURES = {
    "llama": GgufArchitecture("llama", "llama", "llama"),
    "mistral": GgufArchitecture(
        "mistral", "llama", "mistral", facts={"llama.attention.sliding_window": 24}
    ),
    "qwen2": GgufArchitecture("qwen2_unbounded", "qwen2", "qwen2"),
    "qwen3": GgufArchitecture("qwen3", "qwen3", "qwen3"),
    "phi3": GgufArchitecture(
        "phi3",
        "phi3",
        "phi3",
        {"sliding_window": 20},
        {"phi3.attention.sliding_window": 20, "phi3.rope.dimension_count": 48},
    ),
    "gemma2": GgufArchitecture(
        "gemma2",
        "gemma2",
        "gemma2",
        {"query_pre_attn_scalar": 64},
        {"gemma2.attention.sliding_window": 16},
    ),
    "gemma3": GgufArchitecture(
        "gemma3",
        "gemma3",
        "gemma3_text",
        {"query_pre_attn_scalar": 64},
        {"gemma3.attention.sliding_window": 16, "gemma3.rope.freq_base": 1e6},
        full_interval=2,
    ),
    "olmo2": GgufArchitecture("olmo2", "olmo2", "olmo2"),
    "olmo3": GgufArchitecture(
        "olmo3",
        "olmo2",
        "olmo3",
        {
            "rope_parameters": {
                "full_attention": YARN_ROPE,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            }
        },
        {
            "olmo2.attention.sliding_window": 20,
            "olmo2.rope.freq_base": 10_000.0,
            "olmo2.rope.scaling.type": "yarn",
            "olmo2.rope.scaling.factor": 4.0,
            "olmo2.rope.scaling.original_context_length": 256,
            "olmo2.rope.scaling.yarn_attn_factor": 1.1386294361119891,
        },
        full_interval=2,
    ),
    "smollm3": GgufArchitecture(
        "smollm3", "smollm3", "smollm3", {"no_rope_layer_interval": 4}, least_layers=4
    ),
    "glm4": GgufArchitecture(
        "glm4_biases", "glm4", "glm4", facts={"glm4.rope.dimension_count": 32}
    ),
    "mixtral": GgufArchitecture("mixtral", "llama", "mixtral"),
    "qwen3moe": GgufArchitecture(
        "qwen3_moe",
        "qwen3moe",
        "qwen3_moe",
        {"mlp_only_layers": [], "moe_intermediate_size": 256},
    ),
    "qwen2moe": GgufArchitecture(
        "qwen2_moe",
        "qwen2moe",
        "qwen2_moe",
        {
            "mlp_only_layers": [],
            "moe_intermediate_size": 256,
            "shared_expert_intermediate_size": 256,
        },
    ),
    "olmoe": GgufArchitecture("olmoe", "olmoe", "olmoe"),
    "glm4moe": GgufArchitecture(
        "glm4_moe",
        "glm4moe",
        "glm4_moe",
        {"moe_intermediate_size": 256},
        {
            "glm4moe.rope.dimension_count": 32,
            "glm4moe.expert_weights_norm": True,
            "glm4moe.expert_weights_scale": 1.5,
            "glm4moe.expert_gating_func": 2,
        },
    ),
    "deepseek_v2": GgufArchitecture(
        "deepseek_v2_yarn",
        "deepseek2",
        "deepseek_v2",
        {
            **_LATENT,
            "rope_parameters": {**YARN_ROPE, "mscale": 0.9, "mscale_all_dim": 0.9},
            "mlp_bias": False,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 256,
        },
        {
            "deepseek2.expert_gating_func": 1,
            "deepseek2.rope.scaling.type": "yarn",
            "deepseek2.rope.scaling.factor": 4.0,
            "deepseek2.rope.scaling.original_context_length": 256,
            "deepseek2.rope.scaling.yarn_log_multiplier": 0.09,
        },
    ),
    "deepseek_v3": GgufArchitecture(
        "deepseek_v3",
        "deepseek2",
        "deepseek_v3",
        {
            **_LATENT,
            **GROUPED,
            "norm_topk_prob": True,
            "moe_intermediate_size": 256,
        },
        {
            "deepseek2.expert_weights_norm": True,
            "deepseek2.expert_weights_scale": 1.7,
            "deepseek2.expert_gating_func": 2,
        },
    ),
    "llama4": GgufArchitecture(
        "llama4", "llama4", "llama4_text", {"floor_scale": 8192, "intermediate_size_mlp": 256}
    ),
    "gpt-oss": GgufArchitecture(
        "gpt_oss",
        "gpt-oss",
        "gpt_oss",
        {"swiglu_limit": 7.0},
        {
            "gpt-oss.attention.sliding_window": 20,
            "gpt-oss.rope.scaling.type": "yarn",
            "gpt-oss.rope.scaling.factor": 4.0,
            "gpt-oss.rope.scaling.original_context_length": 256,
        },
    ),
}


class Served(NamedTuple):
    """Answer of an engine to a file.

    Attributes:
        tokens: greedy.
        likeliest: of transformers with the same numbers, after each prefix of the answer.
        types: of the file's matrices.
    """

    tokens: list[int]
    likeliest: list[int]
    types: set[str]


def served(folder: Path, name: str, kinds: Sequence[str], *, num_layers: int = 2) -> Served:
    """Write a model as one GGUF file, and serve nothing but this file.

    Args:
        folder: an empty one; the cache of expanded files must be of this test's own.
        name: of ``ARCHITECTURES``.
        kinds: types of its matrices, which take turns.
        num_layers: of the model.
    """
    of, num_layers = ARCHITECTURES[name], max(num_layers, ARCHITECTURES[name].least_layers)
    sizes, facts = {**_SIZES, "num_hidden_layers": num_layers, **of.sizes}, dict(of.facts)
    if of.full_interval:
        slides = [(layer + 1) % of.full_interval != 0 for layer in range(num_layers)]
        types = ("full_attention", "sliding_attention")
        sizes["layer_types"] = [types[slide] for slide in slides]
        facts[f"{of.name}.attention.sliding_window_pattern"] = slides
    source = write_checkpoint(folder / "source", of.checkpoint, **sizes)
    made, plain = folder / "made", folder / "plain"
    made.mkdir()
    plain.mkdir()
    numbers = convert(source, made, of.name, kinds, **_TOKENIZER, **facts)
    (made / "config.json").unlink()
    shutil.copy(source / "config.json", plain)
    save_file({key: t.contiguous() for key, t in numbers.items()}, plain / "model.safetensors")
    engine = build(
        expanded(made / "model.gguf"), quantizer=StrategyChoice("auto"), cpu_activations="float"
    )
    try:
        (sequence,) = engine.submit(_PROMPT, max_tokens=_NEW_TOKENS, ignore_eos=True)
        tokens = engine.run()[sequence].tokens
        assert len(tokens) == _NEW_TOKENS
    finally:
        engine.core.strategies.close()
    stored = read_header(made / "model.gguf").tensors.items()
    return Served(
        tokens,
        best_tokens(plain, of.model_type, _PROMPT + tokens, len(_PROMPT)),
        # Biases of experts are stacked, too.
        {t.type for name, t in stored if len(t.shape) > 1 and not name.endswith(".bias")},
    )
