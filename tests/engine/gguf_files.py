"""GGUF files written byte by byte: whole models, and arbitrary headers."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file

from tests.engine import gguf_latents
from tests.engine.gguf_blocks import BLOCKS, meant, packed
from tests.engine.gguf_stacked_experts import apart, joined

CODES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10,
    "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30,
    "MXFP4": 39,
}  # fmt: skip
ALIGNMENT = 32


class Put(NamedTuple):
    """A tensor to be written: its shape slowest first, its type by name or code."""

    name: str
    shape: tuple[int, ...]
    type: str | int
    data: bytes
    offset: int | None = None


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str | bytes, code: int, packed: bytes) -> bytes:
    """A key with whatever stands behind it."""
    return text(key) + struct.pack("<I", code) + packed


def entry_of(key: str, value: Any) -> bytes:
    """A key with a text, a flag, an integer, a number, or a list of texts, integers or numbers."""
    match value:
        case str():
            return entry(key, 8, text(value))
        case bool():
            return entry(key, 7, struct.pack("<B", value))
        case [bool(), *_]:
            return entry(key, 9, struct.pack(f"<IQ{len(value)}?", 7, len(value), *value))
        case [int(), *_]:
            return entry(key, 9, struct.pack(f"<IQ{len(value)}i", 5, len(value), *value))
        case [float(), *_]:
            return entry(key, 9, struct.pack(f"<IQ{len(value)}f", 6, len(value), *value))
        case list():
            items = b"".join(map(text, value))
            return entry(key, 9, struct.pack("<IQ", 8, len(value)) + items)
        case int():
            return entry(key, 4, struct.pack("<I", value))
        case _:
            return entry(key, 6, struct.pack("<f", value))


def written(
    entries: Sequence[bytes],
    tensors: Sequence[Put],
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = ALIGNMENT,
) -> bytes:
    """A file; ``counts`` of tensors and keys may lie."""
    num_tensors, num_keys = counts or (len(tensors), len(entries))
    head = magic + struct.pack("<IQQ", version, num_tensors, num_keys) + b"".join(entries)
    body = b""
    for put in tensors:
        code = CODES[put.type] if isinstance(put.type, str) else put.type
        dims = put.shape[::-1]
        offset = len(body) if put.offset is None else put.offset
        head += text(put.name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        head += struct.pack("<IQ", code, offset)
        body += put.data + bytes(-len(put.data) % alignment)
    return head + bytes(-len(head) % alignment) + body


NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
    "mlp.router": "ffn_gate_inp",
    "mlp.gate": "ffn_gate_inp", "mlp.experts.*.gate_proj": "ffn_gate_exps",
    "mlp.experts.*.up_proj": "ffn_up_exps", "mlp.experts.*.down_proj": "ffn_down_exps",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down", "feed_forward.router": "ffn_gate_inp",
    "feed_forward.experts.*.gate_proj": "ffn_gate_exps",
    "feed_forward.experts.*.up_proj": "ffn_up_exps",
    "feed_forward.experts.*.down_proj": "ffn_down_exps",
    "feed_forward.shared_expert.gate_proj": "ffn_gate_shexp",
    "feed_forward.shared_expert.up_proj": "ffn_up_shexp",
    "feed_forward.shared_expert.down_proj": "ffn_down_shexp",
    "block_sparse_moe.gate": "ffn_gate_inp", "block_sparse_moe.experts.*.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.*.w3": "ffn_up_exps",
    "block_sparse_moe.experts.*.w2": "ffn_down_exps",
    **gguf_latents.NAMES,
}  # fmt: skip
ALONE = {
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "self_attn.sinks": "attn_sinks.weight",
}
"""Of tensors whose ending differs."""
EXPERT = re.compile(r"\.experts\.(\d+|\*)\.")
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str, architecture: str) -> str:
    """What llama.cpp's converter calls a tensor of Hugging Face's."""
    stem, _, ending = name.rpartition(".")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.{ending}"
    for whole, other in ALONE.items():
        if name.endswith(f".{whole}"):
            return f"blk.{name.split('.')[2]}.{other}"
    _, _, layer, part = stem.split(".", 3)
    norms = {"post_attention_layernorm": "ffn_norm"}
    if architecture == "olmo2":
        norms = {
            "post_attention_layernorm": "post_attention_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        }
    if architecture in ("glm4moe", "gpt-oss"):
        norms = {"post_attention_layernorm": "post_attention_norm"}
    if architecture == "glm4":
        norms |= {
            "post_self_attn_layernorm": "post_attention_norm",
            "post_mlp_layernorm": "post_ffw_norm",
        }
    if architecture in ("gemma2", "gemma3"):
        norms = {
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        }
    part = {**NAMES, **norms}[EXPERT.sub(".experts.*.", part)]
    # Until 2024 each expert was a tensor.
    number = EXPERT.search(stem)
    if number is not None and number[1] != "*":
        part = part.replace("_exps", f".{number[1]}")
    return f"blk.{layer}.{part}.{ending}"


def stacked(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same with a ``*`` for the numbers of experts, which are one tensor."""
    made: dict[str, Any] = {}
    for name, tensor in tensors.items():
        found = EXPERT.search(name)
        if found is None:
            made[name] = tensor
        else:
            made.setdefault(EXPERT.sub(".experts.*.", name), {})[int(found[1])] = tensor
    return {
        name: torch.stack([of[i] for i in range(len(of))]) if isinstance(of, dict) else of
        for name, of in made.items()
    }


EXPERT_FACTS = {
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "num_nextn_predict_layers": "nextn_predict_layers",
}


def metadata(architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What llama.cpp's converter says of a config.json."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    facts = {
        "block_count": config["num_hidden_layers"] + config.get("num_nextn_predict_layers", 0),
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        "vocab_size": config["vocab_size"],
        **gguf_latents.facts(config),
    }
    if architecture == "llama4":
        facts |= {
            "feed_forward_length": config["intermediate_size_mlp"],
            "expert_feed_forward_length": config["intermediate_size"],
            "interleave_moe_layer_step": config["interleave_moe_layer_step"],
        }
    counts = ("num_local_experts", "num_experts", "n_routed_experts")
    count = next((config[key] for key in counts if key in config), None)
    if count is not None:
        facts |= {"expert_count": count, "expert_used_count": config["num_experts_per_tok"]}
    for key, name in EXPERT_FACTS.items():
        if config.get(key) is not None:
            facts[name] = config[key]
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(key) is not None:
            facts[key] = float(config[key])
    return {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": fact for key, fact in facts.items()},
        "tokenizer.ggml.tokens": [f"token {i}" for i in range(50)],
    }


def kept(name: str, columns: int, kinds: Sequence[str], otherwise: str) -> str:
    """A type for a matrix: one after the other of those whose blocks its rows consist of."""
    fitting = [kind for kind in kinds if columns % BLOCKS.get(kind, (1, 1))[0] == 0] or [otherwise]
    return fitting[sum(name.encode()) % len(fitting)]


def convert(
    source: Path,
    folder: Path,
    architecture: str,
    kinds: Sequence[str],
    otherwise: str = "F32",
    *,
    is_apart: bool = False,
    **changes: Any,
) -> dict[str, torch.Tensor]:
    """Write a checkpoint of Hugging Face's as GGUF; ``changes`` are of the metadata.

    Args:
        source: the checkpoint.
        folder: gets it.
        architecture: by llama.cpp's name.
        kinds: types of matrices, which take turns.
        otherwise: the type of a matrix that has no whole blocks of any.
        is_apart: experts are a tensor each, and matrices of latents one for all heads, as in old
            files.
        changes: of the metadata.

    Returns:
        What the weights are now, by their names there.
    """
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config))
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(source.glob("*.safetensors")):
        tensors |= load_file(path)
    numbers: dict[str, torch.Tensor] = {}
    puts = []
    is_gpt = architecture == "gpt-oss"
    is_transposed = is_gpt or architecture == "llama4"
    named = tensors if is_apart else stacked(tensors)
    if is_transposed:
        named = apart(tensors, alternate=is_gpt)
    if not is_apart:
        named = gguf_latents.apart(named, config)
    for name, weight in sorted(named.items()):
        tensor = weight.float()
        if name.endswith(".shared_expert_gate.weight"):
            tensor = tensor.squeeze(0)
        shape = tuple(tensor.shape)
        is_vector = tensor.dim() == 1 or name.endswith(".bias")
        kind = "F32" if is_vector else kept(name, shape[-1], kinds, otherwise)
        heads = 0
        if architecture in ("llama", "smollm3"):
            heads = config["num_attention_heads"] if ".q_proj." in name else heads
            heads = config["num_key_value_heads"] if ".k_proj." in name else heads
        stored = (
            tensor + 1 if architecture in ("gemma2", "gemma3") and tensor.dim() == 1 else tensor
        )
        if heads:  # as the converter's LlamaModel.permute
            halves = (heads, 2, len(tensor) // heads // 2, *shape[1:])
            stored = tensor.reshape(halves).swapaxes(1, 2).reshape(shape)
        data = packed(kind, stored.contiguous())
        puts.append(Put(gguf_name(name, architecture), shape, kind, data))
        read = meant(kind, data, shape)
        if heads:
            pairs = (heads, len(tensor) // heads // 2, 2, *shape[1:])
            read = read.reshape(pairs).swapaxes(1, 2).reshape(shape)
        read = read - 1 if stored is not tensor and not heads else read
        if weight.dim() == 2:
            read = read.reshape(weight.shape)
        if "*" in name and not is_transposed:
            numbers |= {name.replace("*", str(i)): part for i, part in enumerate(read)}
        else:
            numbers[name] = read
    facts = {**metadata(architecture, config), **changes}
    entries = [entry_of(key, fact) for key, fact in facts.items() if fact is not None]
    (folder / "model.gguf").write_bytes(written(entries, puts))
    return joined(numbers, alternate=is_gpt) if is_transposed else gguf_latents.joined(numbers)
