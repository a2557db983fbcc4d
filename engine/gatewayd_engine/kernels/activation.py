"""Activation functions of feed-forward layers, by the name that a checkpoint gives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional


def activation(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function of a gate, by the name that ``ModelSpec`` gives it."""
    match name:
        case "silu":
            return functional.silu
        case "gelu":
            return functional.gelu
        case "gelu_tanh":
            return lambda x: functional.gelu(x, approximate="tanh")
    raise ValueError(f"no activation is called {name!r}")
