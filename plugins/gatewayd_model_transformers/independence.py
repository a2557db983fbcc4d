"""Check that a loaded model computes each token from its own id and position, but for attention.

The engine passes the tokens of several sequences as one row. A model that counts positions by
itself, or mixes neighbours, would be wrong without an error: a trace does not show it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from gatewayd_hooks.model_backends import LoadedModel

_LENGTHS = (2, 3)
_MOST_DIFFERENCE = 0.01
"""Of the largest hidden state; the same rows in another order differ in last bits at most."""
_MOST_TOKENS = 1
"""That may differ: a router between two experts may choose by a last bit."""


def tokens_are_independent(
    model: LoadedModel, vocab_size: int, num_kv_heads: int, device: torch.device | str
) -> bool:
    """Whether two sequences have the same hidden states in either order.

    Args:
        model: with its weights.
        vocab_size: of the model.
        num_kv_heads: of the engine's attention.
        device: of the model.
    """
    first, second = (
        (
            torch.arange(start, start + length, device=device) % vocab_size,
            torch.arange(length, device=device),
        )
        for start, length in zip((3, 5), _LENGTHS, strict=True)
    )

    def attend(layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        # To itself alone; queries and keys too, since positions are in them.
        keys, values = key_value[:, :num_kv_heads], key_value[:, num_kv_heads:]
        each = query.shape[1] // num_kv_heads
        return (query + (keys + values).repeat_interleave(each, dim=1)).flatten(1)

    def hidden(*sequences: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        ids, positions = (torch.cat(parts) for parts in zip(*sequences, strict=True))
        found: torch.Tensor = model.hidden(ids, positions, attend)
        return found.float()

    with torch.inference_mode():
        here = hidden(first, second)
        there = hidden(second, first).roll(_LENGTHS[0], 0)
    difference = (here - there).abs().amax(-1)
    # A comparison that is false for NaN: damaged weights are not judged here.
    wrong = difference > _MOST_DIFFERENCE * here.abs().max()
    return int(wrong.sum()) <= _MOST_TOKENS
