"""Checkpoint without weights in the shape of Llama 3.1 8B, for benchmarks.

Its tokenizer is the embedded model's, padded with unused entries to the full vocabulary, so that
the output layer, the sampler and the gateway's token tables have realistic sizes.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from gatewayd_engine.model import embedded

LLAMA_8B = "llama-8b"

_VOCAB_SIZE = 128_256
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": _VOCAB_SIZE,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": None,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


def write_llama_8b(folder: Path) -> None:
    """Write ``config.json`` and the tokenizer's files into an existing folder."""
    source = embedded.folder()
    (folder / "config.json").write_text(json.dumps(_CONFIG, indent=2), "utf-8")
    tokenizer = json.loads((source / "tokenizer.json").read_text("utf-8"))
    vocab = tokenizer["model"]["vocab"]
    # No merge produces the added entries, so the tokenization of texts does not change.
    vocab.update({f"Ġw{i}": i for i in range(len(vocab), _VOCAB_SIZE)})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), "utf-8")
    shutil.copy(source / "tokenizer_config.json", folder)
