"""Reads trained heads, and refuses those of another model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from gatewayd_hooks.resources import EngineResources

_KIND = "medusa"
_TOLERANCE = 0.01  # other types of numbers round otherwise


class Heads(NamedTuple):
    """Weights, and what ``heads.json`` says of them."""

    tensors: dict[str, torch.Tensor]
    facts: dict[str, Any]


def read_heads(setting: str, resources: EngineResources) -> Heads:
    """Read the heads of a folder.

    Args:
        setting: the folder; empty for the one beside the model's.
        resources: of the engine.

    Raises:
        ValueError: there are none, or they are not this model's; the sentence says what to do.
    """
    model = Path(resources.folder)
    folder = Path(setting) if setting else model.with_name(f"{model.name}-{_KIND}")
    if not (folder / "heads.json").is_file():
        raise ValueError(
            f"there are no {_KIND} heads in {folder}: train some with `python -m"
            f" gatewayd_engine.recipe heads --kind {_KIND}` and name their folder in"
            f" [drafter.{_KIND}] heads"
        )
    try:
        facts = json.loads((folder / "heads.json").read_text("utf-8"))
        tensors = load_file(folder / "heads.safetensors")
        trained_on = tensors.pop("embedding")
        kind, hidden_size, vocab_size = (
            facts[name] for name in ("kind", "hidden_size", "vocab_size")
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"the heads in {folder} cannot be read: {error!r}") from error
    if kind != _KIND:
        raise ValueError(f"the heads in {folder} are for the drafter {kind!r}, not for {_KIND!r}")
    target = resources.target
    if target is None:
        raise ValueError(f"{_KIND} needs the model, and this engine lends it to no drafter")
    if (hidden_size, vocab_size) != (target.hidden_size, resources.vocab_size):
        raise ValueError(
            f"the heads in {folder} are for hidden states of {hidden_size} and {vocab_size} tokens;"
            f" this model has {target.hidden_size} and {resources.vocab_size}"
        )
    served = _embedding(model, len(trained_on))
    if served is not None and (served.float() - trained_on.float()).abs().max() > _TOLERANCE:
        raise ValueError(f"the heads in {folder} were trained for another model than {model}")
    return Heads({name: t.to(resources.device, target.dtype) for name, t in tensors.items()}, facts)


def _embedding(model: Path, count: int) -> torch.Tensor | None:
    """Embeddings of the first tokens in a checkpoint, if it names them as most do."""
    for path in sorted(model.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if name.endswith("embed_tokens.weight"):
                    rows: torch.Tensor = file.get_slice(name)[:count]
                    return rows
    return None
