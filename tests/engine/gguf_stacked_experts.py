"""Experts of gpt-oss and Llama 4 as GGUF files have them: gate and up apart, not transposed."""

from __future__ import annotations

from collections.abc import Mapping

import torch

_GATE_UP = ".experts.gate_up_proj"


def apart(tensors: Mapping[str, torch.Tensor], *, alternate: bool) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint, experts with a ``*`` for their number.

    Args:
        tensors: of the checkpoint.
        alternate: rows of gate and up are in turn, not one half each.
    """
    made = {}
    for name, tensor in tensors.items():
        stem, found, ending = name.partition(".experts.")
        if not found:
            made[name] = tensor
            continue
        kind = "bias" if ending.endswith("_bias") else "weight"
        rows = tensor if kind == "bias" else tensor.transpose(1, 2)
        half = rows.shape[1] // 2
        parts = {"gate": rows[:, :half], "up": rows[:, half:]}
        if alternate:
            parts = {"gate": rows[:, ::2], "up": rows[:, 1::2]}
        for part, some in (parts if _GATE_UP in name else {"down": rows}).items():
            made[f"{stem}.experts.*.{part}_proj.{kind}"] = some.contiguous()
    return made


def joined(tensors: Mapping[str, torch.Tensor], *, alternate: bool) -> dict[str, torch.Tensor]:
    """The inverse of ``apart``."""
    made = {}
    for name, tensor in tensors.items():
        if ".experts." not in name:
            made[name] = tensor
        elif ".gate_proj." in name:
            pair = (tensor, tensors[name.replace(".gate_proj.", ".up_proj.")])
            made[_released(name.replace("gate_proj", "gate_up_proj"))] = _turned(
                torch.stack(pair, 2).flatten(1, 2) if alternate else torch.cat(pair, 1), name
            )
        elif ".down_proj." in name:
            made[_released(name)] = _turned(tensor, name)
    return made


def _released(name: str) -> str:
    return name.replace(".*.", ".").removesuffix(".weight").replace(".bias", "_bias")


def _turned(tensor: torch.Tensor, name: str) -> torch.Tensor:
    return tensor if name.endswith(".bias") else tensor.transpose(1, 2)
