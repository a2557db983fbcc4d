"""Loading of draft heads and predictors, small networks trained for one model."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from gatewayd_engine.speculation.draft_models import DraftTarget
from gatewayd_hooks.resources import Heads

PREDICTOR = "predictor"
"""Name of heads that predict attention; other heads are for drafters."""
_TOLERANCE = 0.01  # other data types round differently


def heads_folder(setting: str, kind: str, model: str | Path) -> Path:
    """Return the folder with the heads of a kind for a checkpoint; see ``read_heads``."""
    folder = Path(model)
    return Path(setting) if setting else folder.with_name(f"{folder.name}-{kind}")


def read_heads(
    setting: str, kind: str, model: Path, target: DraftTarget, vocab_size: int, device: str
) -> Heads:
    """Load the heads in a folder.

    Args:
        setting: the folder; empty for the default one next to the model's.
        kind: the drafter that they are for, or ``PREDICTOR``.
        model: the served checkpoint.
        target: the served model, as drafters see it.
        vocab_size: of the model.
        device: device of the tensors.

    Raises:
        ValueError: there are none, or they were trained for another model; the message says what
            to do.
    """
    folder = heads_folder(setting, kind, model)
    if not (folder / "heads.json").is_file():
        how, where = f"heads --kind {kind}", f"[drafter.{kind}] heads"
        if kind == PREDICTOR:
            how, where = "predictor", "[kv_compression.predictor] network"
        raise ValueError(
            f"there are no {kind} heads in {folder}: train some with `python -m"
            f" gatewayd_engine.offline.train {how}` and name their folder in {where}"
        )
    try:
        facts = json.loads((folder / "heads.json").read_text("utf-8"))
        tensors = load_file(folder / "heads.safetensors")
        trained_on = tensors.pop("embedding")
        its_kind, hidden_size, its_vocab_size = (
            facts[name] for name in ("kind", "hidden_size", "vocab_size")
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"the heads in {folder} cannot be read: {error!r}") from error
    if its_kind != kind:
        raise ValueError(f"the heads in {folder} are for {its_kind!r}, not for {kind!r}")
    if (hidden_size, its_vocab_size) != (target.hidden_size, vocab_size):
        raise ValueError(
            f"the heads in {folder} are for hidden states of {hidden_size} and {its_vocab_size}"
            f" tokens; this model has {target.hidden_size} and {vocab_size}"
        )
    # The file has the first embeddings of its model: sizes alone do not identify it.
    served = _embedding(model, len(trained_on))
    if served is not None and (served.float() - trained_on.float()).abs().max() > _TOLERANCE:
        raise ValueError(f"the heads in {folder} were trained for a model other than {model}")
    return Heads({name: t.to(device, target.dtype) for name, t in tensors.items()}, facts)


def _embedding(model: Path, count: int) -> torch.Tensor | None:
    """Return the embeddings of the first tokens, if the checkpoint uses the common name."""
    for path in sorted(model.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if name.endswith("embed_tokens.weight"):
                    rows: torch.Tensor = file.get_slice(name)[:count]
                    return rows
    return None
