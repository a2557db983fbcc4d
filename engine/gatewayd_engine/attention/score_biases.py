"""Score biases of compacted prefixes for groups of sequences, cached between steps."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kv.compacted_prefix import CompactedPrefix
from gatewayd_engine.kv.key_biases import read_biases
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.state.step_batch import StepBatch


class Biases:
    """Score biases, read once when a group of sequences forms and cached while it lasts.

    Args:
        pool: KV pool that stores the biases.
    """

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool
        # Keyed by the compacted prefixes of a group's sequences. A prefix is immutable, and a later
        # owner of its pages has another prefix object.
        self._known: dict[tuple[CompactedPrefix | None, ...], torch.Tensor] = {}
        self._used: dict[tuple[CompactedPrefix | None, ...], torch.Tensor] = {}

    def start_step(self) -> None:
        """Start a step, dropping cached biases that the previous step did not use."""
        self._known, self._used = self._used, {}

    def of_lines(self, batch: StepBatch, lines: NDArray[np.int64]) -> torch.Tensor | None:
        """Return the biases of the first KV slots of some sequences; None if there are none.

        Returns:
            Zero where a sequence has none, shape ``[layers, count, kv_heads, 1, kv_slots]``.
        """
        if batch.fronts is None:
            return None
        fronts = tuple(batch.fronts.of[line] for line in lines.tolist())
        if not any(fronts):
            return None
        found = self._known.get(fronts)
        if found is None:
            found = self._read(fronts)
        self._used[fronts] = found
        return found

    def _read(self, fronts: tuple[CompactedPrefix | None, ...]) -> torch.Tensor:
        pool = self._pool
        most = max(0 if front is None else front.kept for front in fronts)
        _, layers, _, _, kv_heads, _ = pool.data.shape
        found = torch.zeros(layers, len(fronts), kv_heads, 1, most, dtype=pool.dtype)
        for line, front in enumerate(fronts):
            if front is not None:
                found[:, line, :, 0, : front.kept] = read_biases(pool, front)
        return found


def biased(mask: torch.Tensor | None, bias: torch.Tensor, length: int) -> torch.Tensor:
    """Add the biases of a layer to an additive attention mask.

    Args:
        mask: mask of a ``Group``; None where all positions are visible.
        bias: biases of the first KV slots, shape ``[count, kv_heads, 1, kv_slots]``.
        length: context length of the mask.

    Returns:
        Shape ``[count, kv_heads, width or 1, 1, length]``.
    """
    count, kv_heads, _, places = bias.shape
    wide = torch.nn.functional.pad(bias, (0, length - places)).unsqueeze(2)
    if mask is None:
        return wide
    by_head = mask.view(count, kv_heads, 1, 1, length) if mask.dim() == 3 else mask
    return wide + by_head
