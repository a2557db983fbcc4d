"""Repositories for tests of pulls: files with the names of a model's, and small contents."""

from __future__ import annotations

import json

from tests.gatewayd.hub.fake_hub import FakeRepo

SMALL = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}',
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "README.md": b"# A model",
    "modeling_custom.py": b"raise SystemExit('executed')",
}


def content(name: str, size: int = 20_000) -> bytes:
    """Return bytes that differ from file to file and from place to place."""
    seed = name.encode()
    return b"".join(seed + b"%d" % at for at in range(size))[:size]


def single() -> FakeRepo:
    weights = {"model.safetensors": content("weights")}
    return FakeRepo({**SMALL, **weights, "pytorch_model.bin": b"pickle"})


def sharded() -> FakeRepo:
    """Two shards of an index, and a third file that it does not name."""
    names = [f"model-0000{at}-of-00002.safetensors" for at in (1, 2)]
    index = {"weight_map": {"a": names[0], "b": names[1], "c": names[1]}}
    return FakeRepo(
        {
            **SMALL,
            **{name: content(name) for name in names},
            "consolidated.safetensors": content("consolidated"),
            "model.safetensors.index.json": json.dumps(index).encode(),
        }
    )


def gguf() -> FakeRepo:
    names = ("Small-Q4_K_M.gguf", "Small-q8_0.gguf", "mmproj-Small-F16.gguf")
    return FakeRepo({"config.json": b"{}", **{name: content(name) for name in names}})
