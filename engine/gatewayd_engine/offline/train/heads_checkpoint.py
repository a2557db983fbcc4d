"""Writing of trained draft heads: ``heads.json`` and ``heads.safetensors``.

There is no ``config.json``, which would mark the folder as a model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gatewayd_engine.offline.train.checkpoint import write_tensors
from gatewayd_engine.offline.train.heads import EagleHead, MedusaHeads
from gatewayd_engine.offline.train.model import NORM_EPS, ROPE_THETA

PROBE = 32
"""Rows of the model's embedding that are stored with heads, to identify their base model."""


def write_heads(
    folder: Path,
    heads: MedusaHeads | EagleHead,
    base: str,
    embedding: torch.Tensor,
    accuracy: Sequence[Sequence[float]],
) -> None:
    """Write heads in float16.

    Args:
        folder: created if missing.
        heads: trained.
        base: name of the model that they were trained for.
        embedding: of that model, shape ``[vocab, hidden]``.
        accuracy: for Medusa, how often each head's first, second, ... choice was correct.
    """
    vocab_size, hidden_size = embedding.shape
    facts = {
        "kind": "medusa" if isinstance(heads, MedusaHeads) else "eagle",
        "base": base,
        "hidden_size": hidden_size,
        "vocab_size": vocab_size,
        **_sizes(heads),
    }
    if accuracy:
        facts["accuracy"] = [[round(share, 4) for share in shares] for shares in accuracy]
    tensors = {name: tensor.detach().half() for name, tensor in heads.state_dict().items()}
    # ``read_heads`` compares these rows with the served model's.
    tensors["embedding"] = embedding[:PROBE].detach().half()
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "heads.safetensors", tensors)
    (folder / "heads.json").write_text(json.dumps(facts, indent=2) + "\n", "utf-8")


def _sizes(heads: MedusaHeads | EagleHead) -> dict[str, Any]:
    if isinstance(heads, MedusaHeads):
        return {"num_heads": heads.num_heads, "inner": heads.inner}
    return {
        "heads": heads.heads,
        "kv_heads": heads.kv_heads,
        "head_dim": heads.head_dim,
        "inner": heads.inner,
        "window": heads.window,
        "norm_eps": NORM_EPS,
        "rope_theta": ROPE_THETA,
    }
