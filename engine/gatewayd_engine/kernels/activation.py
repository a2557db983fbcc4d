"""Activation functions of feed-forward layers by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional


def activation(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the activation function that ``ModelSpec`` calls ``name``.

    Raises:
        ValueError: there is none of that name.
    """
    match name:
        case "silu":
            return functional.silu
        case "gelu":
            return functional.gelu
        case "gelu_tanh":
            return lambda x: functional.gelu(x, approximate="tanh")
    raise ValueError(f"unknown activation {name!r}")
