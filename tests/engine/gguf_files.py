"""GGUF files, written byte by byte: whole ones of a model, and headers that say anything.

``value`` is the published formula of each type for one number, with no array of them in sight: the
measure for what unpacks whole rows at once.
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
    rows = zip(made, blocks, strict=True)
    if kind in ("Q8_0", "Q4_0"):
        most = 127 if kind == "Q8_0" else 7
        scales = _half(np.abs(blocks).max(1) / most)
        codes = np.rint(blocks / scales[:, None]).clip(-most, most).astype(np.int8)
        _put_half(made, 0, scales)
        if kind == "Q8_0":
            made[:, 2:] = codes.view(np.uint8)
        else:
            nibbles = (codes + 8).astype(np.uint8)
            made[:, 2:] = nibbles[:, :16] | nibbles[:, 16:] << 4
    else:
        for out, block in rows:
            (_put_q4_k if kind == "Q4_K" else _put_q6_k)(out, block)
    return made.tobytes()


def _half(numbers: Any) -> Any:
    return np.maximum(numbers, 1e-6).astype(np.float16).astype(np.float32)


def _put_half(made: Any, at: int, numbers: Any) -> None:
    made[..., at : at + 2] = np.asarray(numbers, "<f2").reshape(-1, 1).view(np.uint8).squeeze()\
        if made.ndim == 1 else np.asarray(numbers, "<f2").reshape(-1, 1).view(np.uint8)


def _put_q4_k(out: Any, block: Any) -> None:
    groups = block.reshape(8, 32)
    least, most = np.minimum(groups.min(1), 0), groups.max(1)
    d, dmin = _half((most - least).max() / 15 / 63), _half(-least.min() / 63)
    scales = np.rint((most - least) / 15 / d).clip(1, 63).astype(int)
    mins = np.rint(-least / dmin).clip(0, 63).astype(int)
    _put_half(out, 0, d)
    _put_half(out, 2, dmin)
    for j in range(4):
        out[4 + j] = scales[j] | scales[4 + j] >> 4 << 6
        out[8 + j] = mins[j] | mins[4 + j] >> 4 << 6
        out[12 + j] = scales[4 + j] & 15 | (mins[4 + j] & 15) << 4
    for j in range(8):
        codes = np.rint((groups[j] + dmin * mins[j]) / (d * scales[j])).clip(0, 15)
        at = 16 + 32 * (j // 2)
        out[at : at + 32] |= codes.astype(np.uint8) << 4 * (j % 2)


def _put_q6_k(out: Any, block: Any) -> None:
    groups = block.reshape(16, 16)
    most = np.abs(groups).max(1) / 31
    d = _half(most.max() / 127)
    scales = np.rint(most / d).clip(1, 127).astype(np.int8)
    codes = np.rint(groups / (d * scales[:, None])).clip(-32, 31).astype(int).reshape(-1) + 32
    for i, code in enumerate(codes):
        half, place = divmod(i, 128)
        t, l = divmod(place, 32)
        out[64 * half + l + 32 * (t & 1)] |= (code & 15) << 4 * (t >> 1)
        out[128 + 32 * half + l] |= code >> 4 << 2 * t
    out[192:208] = scales.view(np.uint8)
    _put_half(out, 208, d)


def value(kind: str, block: bytes, i: int) -> np.float32:
    """The number ``i`` of a block."""

    def half(at: int) -> np.float32:
        return np.float32(np.frombuffer(block, "<f2", 1, at)[0])

    def signed(at: int) -> np.float32:
        return np.float32(block[at] - 256 if block[at] > 127 else block[at])

    if kind == "Q8_0":
        return half(0) * signed(2 + i)
    if kind == "Q4_0":
        return half(0) * np.float32((block[2 + i % 16] >> 4 * (i // 16) & 15) - 8)
    if kind == "Q4_K":
        j, s = i // 32, block[4:16]
        if j < 4:
            scale, least = s[j] & 63, s[j + 4] & 63
        else:
            scale = s[j + 4] & 15 | s[j - 4] >> 6 << 4
            least = s[j + 4] >> 4 | s[j] >> 6 << 4
        code = block[16 + 32 * (j // 2) + i % 32] >> 4 * (j % 2) & 15
        product = half(0) * np.float32(scale) * np.float32(code)
        return np.float32(product - half(2) * np.float32(least))
    side, place = divmod(i, 128)
    t, l = divmod(place, 32)
    low = block[64 * side + l + 32 * (t & 1)] >> 4 * (t >> 1) & 15
    high = block[128 + 32 * side + l] >> 2 * t & 3
    return half(208) * signed(192 + i // 16) * np.float32((low | high << 4) - 32)


def meant(kind: str, data: bytes, shape: tuple[int, ...]) -> torch.Tensor:
    """The numbers of a tensor, one by one for blocks."""
    if kind not in BLOCKS:
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
        return torch.frombuffer(bytearray(data), dtype=dtype).float().reshape(shape)
    columns, nbytes = BLOCKS[kind]
    numbers = [
        value(kind, data[at : at + nbytes], i)
        for at in range(0, len(data), nbytes)
        for i in range(columns)
    ]
    return torch.from_numpy(np.array(numbers, np.float32)).reshape(shape)


NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
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
    for ours, theirs in (
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ):
        if config.get(theirs) is not None:
            facts[ours] = float(config[theirs])
    return {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": fact for key, fact in facts.items()},
        "tokenizer.ggml.tokens": [f"token {i}" for i in range(50)],
    }


def kept(name: str, columns: int, kinds: Sequence[str]) -> str:
    """A type for a matrix: one after the other of those whose blocks its rows consist of."""
    fitting = [kind for kind in kinds if columns % BLOCKS.get(kind, (1, 1))[0] == 0]
    return fitting[sum(name.encode()) % len(fitting)]


def convert(
    source: Path, folder: Path, architecture: str, kinds: Sequence[str], **changes: Any
) -> dict[str, torch.Tensor]:
    """Write a checkpoint of Hugging Face's as GGUF; ``changes`` are of the metadata.

    Returns:
        What the weights are now, by their names there.
    """
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config))
    numbers, puts = {}, []
    for path in sorted(source.glob("*.safetensors")):
        for name, weight in sorted(load_file(path).items()):
            tensor = weight.float()
            kind = "F32" if tensor.dim() == 1 else kept(name, tensor.shape[1], kinds)
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
