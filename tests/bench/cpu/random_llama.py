"""Checkpoint with the shape of Llama 3.2 1B and random weights, which needs no download.

Speed depends on shapes and types, not on what the numbers are. The tokenizer is the embedded
model's, padded to Llama's vocabulary: both servers read the same prompts and write text for every
token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from gatewayd_engine.model.embedded import folder

LAYERS, HIDDEN, INTERMEDIATE, VOCABULARY = 16, 2048, 8192, 128_256
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 64
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 131_072,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": None,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
SIDE_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
"""What a folder needs beside its weights."""
_SPREAD = 0.02
"""Standard deviation of the weights, as in Llama's own initialization."""


def write(path: Path, seed: int = 0) -> None:
    """Write config, tokenizer and 2.5 GB of weights into a new folder."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(CONFIG, indent=1))
    (path / "tokenizer.json").write_text(padded_tokenizer(), encoding="utf-8")
    for name in ("tokenizer_config.json", "generation_config.json"):
        (path / name).write_bytes((folder() / name).read_bytes())
    save_file(_weights(seed), path / "model.safetensors", metadata={"format": "pt"})


def padded_tokenizer() -> str:
    """The embedded model's ``tokenizer.json`` with a word for every id that it lacks."""
    values = json.loads((folder() / "tokenizer.json").read_text("utf-8"))
    vocabulary = values["model"]["vocab"]
    # No merge leads to these words: prompts have none of them, answers have almost no others.
    for token in range(len(vocabulary), VOCABULARY):
        vocabulary[f"Ġw{token}"] = token
    return json.dumps(values, ensure_ascii=False)


def _weights(seed: int) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)

    def random(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        made = torch.empty(rows, columns).normal_(0, _SPREAD * scale, generator=chance)
        return made.to(torch.bfloat16)

    query, key = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    # What is added to the residual stream is smaller the deeper the model, as in GPT-2.
    added = (2 * LAYERS) ** -0.5
    found = {"model.embed_tokens.weight": random(VOCABULARY, HIDDEN)}
    found["model.norm.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
    for layer in range(LAYERS):
        start = f"model.layers.{layer}."
        found |= {
            f"{start}self_attn.q_proj.weight": random(query, HIDDEN),
            f"{start}self_attn.k_proj.weight": random(key, HIDDEN),
            f"{start}self_attn.v_proj.weight": random(key, HIDDEN),
            f"{start}self_attn.o_proj.weight": random(HIDDEN, query, added),
            f"{start}mlp.gate_proj.weight": random(INTERMEDIATE, HIDDEN),
            f"{start}mlp.up_proj.weight": random(INTERMEDIATE, HIDDEN),
            f"{start}mlp.down_proj.weight": random(HIDDEN, INTERMEDIATE, added),
            f"{start}input_layernorm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
            f"{start}post_attention_layernorm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
        }
    return found
