"""GGUF files, written byte by byte: whole ones of a model, and headers that say anything.

``number`` is the published formula of each type for one number of a block: the measure for what
unpacks whole rows at once.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file

CODES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "BF16": 30}
BLOCKS = {"Q8_0": (32, 34), "Q4_0": (32, 18), "Q4_K": (256, 144), "Q6_K": (256, 210)}
"""Numbers and bytes of a block."""
HALVES = {"Q8_0": (0,), "Q4_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
"""Where float16 are in a block."""
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
    """A key with a text, a list of texts, an integer or a number."""
    match value:
        case str():
            return entry(key, 8, text(value))
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


def packed(kind: str, weight: torch.Tensor) -> bytes:
    """A matrix, roughly rounded, in blocks of a type; floats as they are."""
    if kind in ("F32", "F16"):
        return weight.numpy().astype("<f4" if kind == "F32" else "<f2").tobytes()
    if kind == "BF16":
        return weight.bfloat16().view(torch.int16).numpy().tobytes()
    columns, nbytes = BLOCKS[kind]
    blocks = weight.numpy().reshape(-1, columns)
    made = np.zeros((len(blocks), nbytes), np.uint8)
    _PUT[kind](made, blocks)
    return made.tobytes()


def _half(numbers: Any) -> Any:
    return np.maximum(numbers, 1e-6).astype(np.float16).astype(np.float32)[:, None]


def _put_half(made: Any, at: int, numbers: Any) -> None:
    made[:, at : at + 2] = numbers.astype("<f2").view(np.uint8)


def _put_q8_0(made: Any, blocks: Any) -> None:
    scales = _half(np.abs(blocks).max(1) / 127)
    _put_half(made, 0, scales)
    made[:, 2:] = np.rint(blocks / scales).clip(-127, 127).astype(np.int8).view(np.uint8)


def _put_q4_0(made: Any, blocks: Any) -> None:
    scales = _half(np.abs(blocks).max(1) / 7)
    codes = (np.rint(blocks / scales).clip(-7, 7) + 8).astype(np.uint8)
    _put_half(made, 0, scales)
    made[:, 2:] = codes[:, :16] | codes[:, 16:] << 4


def _put_q4_k(made: Any, blocks: Any) -> None:
    groups = blocks.reshape(-1, 8, 32)
    least, most = np.minimum(groups.min(2), 0), groups.max(2)
    d, dmin = _half((most - least).max(1) / 15 / 63), _half(-least.min(1) / 63)
    scales = np.rint((most - least) / 15 / d).clip(1, 63).astype(np.uint8)
    mins = np.rint(-least / dmin).clip(0, 63).astype(np.uint8)
    _put_half(made, 0, d)
    _put_half(made, 2, dmin)
    for j in range(4):
        made[:, 4 + j] = scales[:, j] | scales[:, 4 + j] >> 4 << 6
        made[:, 8 + j] = mins[:, j] | mins[:, 4 + j] >> 4 << 6
        made[:, 12 + j] = scales[:, 4 + j] & 15 | (mins[:, 4 + j] & 15) << 4
    for j in range(8):
        step, lowest = d * scales[:, j, None], dmin * mins[:, j, None]
        codes = np.rint((groups[:, j] + lowest) / step).clip(0, 15).astype(np.uint8)
        at = 16 + 32 * (j // 2)
        made[:, at : at + 32] |= codes << 4 * (j % 2)


def _put_q6_k(made: Any, blocks: Any) -> None:
    most = np.abs(blocks.reshape(-1, 16, 16)).max(2) / 31
    d = _half(most.max(1) / 127)
    scales = np.rint(most / d).clip(1, 127)
    codes = np.rint(blocks / (d * scales).repeat(16, 1)).clip(-32, 31) + 32
    for i, code in enumerate(codes.astype(np.uint8).T):
        side, t, j = i // 128, i // 32 % 4, i % 32
        made[:, 64 * side + j + 32 * (t & 1)] |= (code & 15) << 4 * (t >> 1)
        made[:, 128 + 32 * side + j] |= code >> 4 << 2 * t
    made[:, 192:208] = scales.astype(np.int8).view(np.uint8)
    _put_half(made, 208, d)


_PUT = {"Q8_0": _put_q8_0, "Q4_0": _put_q4_0, "Q4_K": _put_q4_k, "Q6_K": _put_q6_k}


def number(kind: str, raw: Any, i: int) -> Any:
    """The number ``i`` of each of some blocks, uint8 ``[blocks, bytes]``."""
    block = raw.T.astype(np.int32)

    def half(at: int) -> Any:
        return raw[:, at : at + 2].copy().view("<f2")[:, 0].astype(np.float32)

    def signed(at: int) -> Any:
        return np.where(block[at] > 127, block[at] - 256, block[at]).astype(np.float32)

    if kind == "Q8_0":
        return half(0) * signed(2 + i)
    if kind == "Q4_0":
        return half(0) * ((block[2 + i % 16] >> 4 * (i // 16) & 15) - 8).astype(np.float32)
    if kind == "Q4_K":
        j, s = i // 32, block[4:16]
        if j < 4:
            scale, least = s[j] & 63, s[j + 4] & 63
        else:
            scale = s[j + 4] & 15 | s[j - 4] >> 6 << 4
            least = s[j + 4] >> 4 | s[j] >> 6 << 4
        code = block[16 + 32 * (j // 2) + i % 32] >> 4 * (j % 2) & 15
        product = half(0) * scale.astype(np.float32) * code.astype(np.float32)
        return product - half(2) * least.astype(np.float32)
    side, t, j = i // 128, i // 32 % 4, i % 32
    low = block[64 * side + j + 32 * (t & 1)] >> 4 * (t >> 1) & 15
    high = block[128 + 32 * side + j] >> 2 * t & 3
    return half(208) * signed(192 + i // 16) * ((low | high << 4) - 32).astype(np.float32)


def meant(kind: str, data: bytes, shape: tuple[int, ...]) -> torch.Tensor:
    """The numbers of a tensor, one number of the blocks after the other."""
    if kind not in BLOCKS:
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
        return torch.frombuffer(bytearray(data), dtype=dtype).float().reshape(shape)
    columns, nbytes = BLOCKS[kind]
    blocks = np.frombuffer(data, np.uint8).reshape(-1, nbytes)
    numbers = np.stack([number(kind, blocks, i) for i in range(columns)], 1)
    return torch.from_numpy(numbers).reshape(shape)


NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
}  # fmt: skip
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str, architecture: str) -> str:
    """What llama.cpp's converter calls a tensor of Hugging Face's."""
    stem, _, ending = name.rpartition(".")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.{ending}"
    _, _, layer, part = stem.split(".", 3)
    norms = {"post_attention_layernorm": "ffn_norm"}
    if architecture == "gemma2":
        norms = {
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        }
    return f"blk.{layer}.{({**NAMES, **norms})[part]}.{ending}"


def metadata(architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What llama.cpp's converter says of a config.json."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    facts = {
        "block_count": config["num_hidden_layers"],
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
    }
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
    **changes: Any,
) -> dict[str, torch.Tensor]:
    """Write a checkpoint of Hugging Face's as GGUF; ``changes`` are of the metadata.

    Args:
        source: the checkpoint.
        folder: gets it.
        architecture: by llama.cpp's name.
        kinds: types of matrices, which take turns.
        otherwise: the type of a matrix that has no whole blocks of any.
        changes: of the metadata.

    Returns:
        What the weights are now, by their names there.
    """
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config))
    numbers, puts = {}, []
    for path in sorted(source.glob("*.safetensors")):
        for name, weight in sorted(load_file(path).items()):
            tensor = weight.float()
            kind = "F32" if tensor.dim() == 1 else kept(name, tensor.shape[1], kinds, otherwise)
            heads = 0
            if architecture == "llama":
                heads = config["num_attention_heads"] if ".q_proj." in name else heads
                heads = config["num_key_value_heads"] if ".k_proj." in name else heads
            stored = tensor + 1 if architecture == "gemma2" and tensor.dim() == 1 else tensor
            if heads:  # as the converter's LlamaModel.permute
                shape = (heads, 2, len(tensor) // heads // 2, *tensor.shape[1:])
                stored = tensor.reshape(shape).swapaxes(1, 2).reshape(tensor.shape)
            data = packed(kind, stored.contiguous())
            puts.append(Put(gguf_name(name, architecture), tuple(tensor.shape), kind, data))
            read = meant(kind, data, tuple(tensor.shape))
            if heads:
                shape = (heads, len(tensor) // heads // 2, 2, *tensor.shape[1:])
                read = read.reshape(shape).swapaxes(1, 2).reshape(tensor.shape)
            numbers[name] = read - 1 if stored is not tensor and not heads else read
    facts = {**metadata(architecture, config), **changes}
    entries = [entry_of(key, fact) for key, fact in facts.items() if fact is not None]
    (folder / "model.gguf").write_bytes(written(entries, puts))
    return numbers
