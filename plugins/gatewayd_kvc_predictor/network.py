"""The network that foresees attention, and the image of the last tokens that it looks at."""

from __future__ import annotations

import torch
from torch.nn.functional import conv1d

from gatewayd_hooks.speculation import Heads

ROWS = 16
"""Tokens that the image shows."""
_CHANNELS = ROWS + 2
_FLOOR = 1e-5
"""Less attention than this looks like none."""
_NAMES = [
    f"{layer}.{part}"
    for layer in ("first", "second", "last", "skip")
    for part in ("weight", "bias")
]


class Network:
    """Scores of blocks: three convolutions over them, and one that sees a block alone.

    Args:
        heads: its weights.

    Raises:
        ValueError: they are of another form.
    """

    def __init__(self, heads: Heads) -> None:
        try:
            parts = [heads.tensors[name].float() for name in _NAMES]
        except KeyError as error:
            raise ValueError(f"the network has no {error}") from None
        first, skip = parts[0], parts[6]
        if first.dim() != 3 or first.shape[1] != _CHANNELS or skip.shape != (1, _CHANNELS, 1):
            raise ValueError(f"the network does not look at {_CHANNELS} rows")
        self._layers = list(zip(parts[::2], parts[1::2], strict=True))

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Logits ``[n, blocks]`` of ``[n, channels, blocks]``."""
        (first, second, last, skip) = self._layers
        found = conv1d(image, *first, padding=1).relu_()
        found = conv1d(found, *second, padding=1).relu_()
        return (conv1d(found, *last, padding=1) + conv1d(image, *skip)).squeeze(1)


def image(history: torch.Tensor, total: torch.Tensor, newest: torch.Tensor) -> torch.Tensor:
    """What the network looks at.

    Args:
        history: attention of blocks by the last tokens, oldest first, ``[n, ROWS, blocks]``.
        total: attention that each block has got from all tokens, ``[n, blocks]``.
        newest: the block of the token that is to come, ``[n]``.
    """
    away = newest[:, None] - torch.arange(history.shape[-1])
    distance = away.clamp_min(0).add(1).log2().mul_(0.2)
    seen = torch.cat((history, total[:, None]), 1).add_(_FLOOR).log_().mul_(0.25).add_(2)
    return torch.cat((seen, distance[:, None]), 1)
