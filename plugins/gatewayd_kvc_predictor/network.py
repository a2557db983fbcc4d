"""Network that predicts attention, and its input."""

from __future__ import annotations

import torch
from torch.nn.functional import conv1d, pad

from gatewayd_hooks.resources import Heads

RATES = (0.4, 0.15, 0.05)
"""Update rates of the moving averages of attention: three time scales."""
KEPT = 1 + len(RATES)
"""Numbers stored per position: the attention of the last dense step, and averages."""
_CHANNELS = KEPT + 1
_FLOOR = 0.01
"""Attention below this fraction of a uniform share counts as none."""
_LENGTHS = 256
_NAMES = [f"{layer}.{part}" for layer in ("first", "last", "skip") for part in ("weight", "bias")]


class Network:
    """Scores positions with two wide convolutions over them, and a pointwise one.

    Args:
        heads: its weights.

    Raises:
        ValueError: they have another format.
    """

    def __init__(self, heads: Heads) -> None:
        try:
            parts = [heads.tensors[name].float() for name in _NAMES]
        except KeyError as error:
            raise ValueError(f"the network has no {error}") from None
        first, last, skip = parts[0], parts[2], parts[4]
        if first.dim() != 3 or first.shape[1] != _CHANNELS or skip.shape != (1, _CHANNELS, 1):
            raise ValueError(f"the network does not have {_CHANNELS} input channels")
        if (
            last.shape[:2] != (1, first.shape[0])
            or not first.shape[2] % 2 == last.shape[2] % 2 == 1
        ):
            raise ValueError("the shapes of the network's convolutions do not match")
        self._first = first, parts[1]
        self._last, self._skip = last[0].T.contiguous(), skip[..., 0]
        self._bias = float(parts[3] + parts[5])

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Return logits ``[n, places]`` of ``[n, channels, places]``."""
        places = image.shape[-1]
        # A convolution is prepared for each new length, so lengths are rounded up.
        wide = pad(image, (0, -places % _LENGTHS))
        found = conv1d(wide, *self._first, padding="same")[..., :places].relu()
        scores = (self._skip @ image).squeeze(1).add_(self._bias)
        # With a single output channel a product for each tap is faster than a convolution.
        taps = (self._last @ found).unbind(1)
        for i, tap in enumerate(taps):
            away = i - len(taps) // 2
            if away > 0:
                scores[:, :-away] += tap[:, away:]
            else:
                scores[:, -away:] += tap[:, : places + away]
        return scores


def image(kept: torch.Tensor) -> torch.Tensor:
    """Return the network's input, which is independent of the context length.

    Args:
        kept: statistics per position, shape ``[n, KEPT, length]``.

    Returns:
        Shape ``[n, KEPT + 1, length]``.
    """
    count, _, length = kept.shape
    seen = (kept * length).add_(_FLOOR).log_().mul_(0.25)
    away = torch.arange(length, 0, -1, dtype=torch.float32).log2_().mul_(0.2)
    return torch.cat((seen, away.expand(count, 1, length)), 1)
