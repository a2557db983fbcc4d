"""Recent tokens and heavy hitters: H2O (Zhang et al. 2023), without discarding any KV."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gatewayd_kvc_heavy.config import HeavyConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources


class Heavy:
    """Selects half of a budget by recency, and half by accumulated attention."""

    def __init__(self, config: HeavyConfig) -> None:
        self._config = config
        # Accumulated attention of each position, [layers, rows, kv_heads, max_model_len].
        self._mass = torch.zeros(0)
        self._kv_heads = 0
        self._steps = np.zeros(0, np.int64)
        self._seen = np.zeros(0, np.int64)
        # Position up to which dense attention was written, padding included.
        self._reach = np.zeros(0, np.int64)
        # Length at the last update of each layer of a row, [layers, rows].
        self._added = np.zeros((0, 0), np.int64)

    def open(self, resources: EngineResources) -> None:
        """Allocate memory for accumulated attention; it is committed as contexts grow."""
        shape = resources.kv_shape
        if shape is None:
            raise ValueError("the engine does not provide kv_shape")
        rows, self._kv_heads = resources.max_running, shape.num_kv_heads
        each = (shape.num_layers, rows, shape.num_kv_heads, resources.max_model_len)
        # Through numpy, as its zeros are committed lazily.
        self._mass = torch.from_numpy(np.zeros(each, np.float32))
        self._steps = np.zeros(rows, np.int64)
        self._seen = np.zeros(rows, np.int64)
        self._reach = np.zeros(rows, np.int64)
        self._added = np.zeros((shape.num_layers, rows), np.int64)

    def close(self) -> None:
        """Release the memory."""
        self._mass = torch.zeros(0)

    def admit(self, row: int) -> None:
        """Reset this row's state for a new sequence."""
        # Only what was written: clearing the rest would commit its memory.
        self._mass[:, row, :, : max(self._seen[row], self._reach[row])] = 0
        self._steps[row] = self._seen[row] = self._reach[row] = 0
        self._added[:, row] = 0

    def leave(self, row: int) -> object:
        """See ``Moves``."""
        length = int(self._seen[row])
        mass = self._mass[:, row, :, :length].clone()
        return int(self._steps[row]), length, mass, self._added[:, row].copy()

    def enter(self, row: int, known: Any) -> None:  # noqa: ANN401 - what ``leave`` gave
        """See ``Moves``."""
        self.admit(row)
        self._steps[row], length, mass, self._added[:, row] = known
        self._seen[row] = length
        self._mass[:, row, :, :length] = mass

    def budgets(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return 0 (all) at first and periodically.

        Otherwise the budget's fraction of the context.
        """
        config = self._config
        # A step that is computed again has the same lengths, and is counted once.
        self._steps[rows] += lengths != self._seen[rows]
        self._seen[rows] = lengths
        is_sparse = (lengths > config.at_least) & (self._steps[rows] > config.warm_steps)
        is_sparse &= lengths % config.every != 0
        return np.where(is_sparse, np.ceil(lengths * config.budget), 0).astype(np.int64)

    def select(
        self,
        layer: int,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        budgets: NDArray[np.int64],
    ) -> torch.Tensor | None:
        """Select the newest positions, and those with most attention among the others."""
        if layer < self._config.dense_layers:
            return None
        longest = int(lengths.max())
        # A copy, because rows are selected by a tensor: the fills below do not change the
        # statistics.
        scores = self._mass[layer, torch.from_numpy(rows), :, :longest]
        at, end = torch.arange(longest), torch.from_numpy(lengths)[:, None, None]
        budget = torch.from_numpy(budgets)[:, None, None]
        # The newest positions always come first, the one being computed among them.
        scores.masked_fill_(at >= end - (budget + 1) // 2, torch.inf)
        scores.masked_fill_(at >= end, -torch.inf)
        places = scores.topk(int(budgets.max()), -1).indices
        return places.masked_fill_(torch.arange(places.shape[-1]) >= budget, -1)

    def observe(
        self,
        layer: int,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        weights: torch.Tensor,
        places: torch.Tensor | None,
    ) -> None:
        """Add attention weights, once for each token."""
        if layer < self._config.dense_layers:
            return
        # A step that is computed again is observed again, and must count once.
        is_new = self._added[layer, rows] != lengths
        if not is_new.all():
            new = torch.from_numpy(is_new)
            rows, lengths, weights = rows[is_new], lengths[is_new], weights[new]
            places = None if places is None else places[new]
        self._added[layer, rows] = lengths
        mass = torch.unflatten(weights.float(), 1, (self._kv_heads, -1)).mean(2)
        index, known = torch.from_numpy(rows), self._mass[layer]
        if places is None:
            # Also beyond a row's length: NaN survives a multiplicative mask.
            known[index, :, : mass.shape[-1]] += mass
            self._reach[rows] = np.maximum(self._reach[rows], mass.shape[-1])
            return
        heads = torch.arange(self._kv_heads)[:, None]
        # Offset of each row and head in the flattened layer, [n, kv_heads, 1].
        at = (index[:, None, None] * self._kv_heads + heads) * known.shape[-1]
        # Padding has no weight.
        at = at + places.clamp_min(0)
        known.view(-1).scatter_add_(0, at.flatten(), mass.flatten())
