"""Biases of the lines that attend together, as scores are shaped, kept from step to step."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kv.compacted_prefix import CompactedPrefix
from gatewayd_engine.kv.key_biases import read_biases
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.state.step_batch import StepBatch


class Biases:
    """Reads them when lines come together, and not again while they stay so.

    Args:
        pool: where they are.
    """

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool
        # By the fronts of a group's lines. A front is never written again, and who has its
        # pages after it has another one.
        self._known: dict[tuple[CompactedPrefix | None, ...], torch.Tensor] = {}
        self._used: dict[tuple[CompactedPrefix | None, ...], torch.Tensor] = {}

    def begin(self) -> None:
        """Another step: what was not asked for in the one before is forgotten."""
        self._known, self._used = self._used, {}

    def of_lines(self, batch: StepBatch, lines: NDArray[np.int64]) -> torch.Tensor | None:
        """Biases of the first places of some lines; None where none has any.

        Returns:
            0 where a line has none, shape ``[layers, count, kv_heads, 1, places]``.
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
    """A mask with the biases of a layer.

    Args:
        mask: of a ``Group``; None where all see all.
        bias: of the first places, shape ``[count, kv_heads, 1, places]``.
        length: places that there are.

    Returns:
        Shape ``[count, kv_heads, width or 1, 1, length]``.
    """
    count, kv_heads, _, places = bias.shape
    wide = torch.nn.functional.pad(bias, (0, length - places)).unsqueeze(2)
    if mask is None:
        return wide
    by_head = mask.view(count, kv_heads, 1, 1, length) if mask.dim() == 3 else mask
    return wide + by_head
