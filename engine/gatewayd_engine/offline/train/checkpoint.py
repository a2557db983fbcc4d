"""Writing of a trained model as a Hugging Face checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from gatewayd_engine.offline.train.chats import END
from gatewayd_engine.offline.train.model import NORM_EPS, ROPE_THETA, Llama, Size
from gatewayd_engine.offline.train.tokenizer import END_ID, END_OF_TEXT_ID, PAD, PAD_ID

CONTEXT = 2048
SPLIT_ABOVE = 7_000_000
"""Parameters beyond which two shards are written, so that sharded loading is exercised."""


def write_checkpoint(folder: Path, model: Llama, tokenizer: Tokenizer) -> None:
    """Write weights in bfloat16, configuration and tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_weights(folder, model)
    _write_json(folder / "config.json", config(model.size))
    ends = {"eos_token_id": [END_OF_TEXT_ID, END_ID], "bos_token_id": None}
    _write_json(
        folder / "generation_config.json", {**ends, "pad_token_id": PAD_ID, "do_sample": False}
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "eos_token": END,
            "pad_token": PAD,
            "chat_template": chat_template(),
        },
    )


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write a safetensors file with mode 0644; the library itself creates it with 0600."""
    save_file(tensors, path, {"format": "pt"})
    path.chmod(0o644)


def config(size: Size) -> dict[str, Any]:
    """Return the config.json of a model size."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": size.vocab,
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "max_position_embeddings": CONTEXT,
        "rope_theta": ROPE_THETA,
        "rms_norm_eps": NORM_EPS,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": END_ID,
        "pad_token_id": PAD_ID,
        "torch_dtype": "bfloat16",
    }


def chat_template() -> str:
    """Return the Jinja chat template: ChatML with tools."""
    return (Path(__file__).parent / "chat_template.jinja").read_text("utf-8").rstrip("\n")


def _write_weights(folder: Path, model: Llama) -> None:
    tensors = {
        f"model.{name}": tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
    }
    num_parameters = sum(tensor.numel() for tensor in tensors.values())
    if num_parameters <= SPLIT_ABOVE:
        write_tensors(folder / "model.safetensors", tensors)
        return
    lower = {f"model.layers.{index}." for index in range(model.size.layers // 2)}
    shards = {
        "model-00001-of-00002.safetensors": {n for n in tensors if n.startswith(tuple(lower))},
        "model-00002-of-00002.safetensors": {n for n in tensors if not n.startswith(tuple(lower))},
    }
    for file, names in shards.items():
        write_tensors(folder / file, {name: tensors[name] for name in names})
    weight_map = {name: file for file, names in shards.items() for name in sorted(names)}
    # Bytes: two for each parameter in bfloat16.
    metadata = {"total_size": 2 * num_parameters}
    index = {"metadata": metadata, "weight_map": weight_map}
    _write_json(folder / "model.safetensors.index.json", index)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
