"""Predicts attention from that of the latest tokens; after AttentionPredictor.

Source: arXiv 2502.04077. Differences are listed in the README.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from gatewayd_kvc_predictor.config import PredictorConfig
from gatewayd_kvc_predictor.memory import Memory
from gatewayd_kvc_predictor.network import Network

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources


class Predictor:
    """Runs the network after each token with dense attention, and then uses its selection."""

    def __init__(self, config: PredictorConfig) -> None:
        self._config = config
        self._network: Network | None = None
        self._memory: Memory | None = None
        self._kv_heads = 0
        # Per row: decode steps, the length of the last, and whether that was dense.
        self._steps = np.zeros(0, np.int64)
        self._seen = np.zeros(0, np.int64)
        self._was_whole = np.zeros(0, np.bool_)
        # In this step: sparse rows, and their positions by layer.
        self._few = torch.zeros(0)
        self._places: list[torch.Tensor] = []

    def open(self, resources: EngineResources) -> None:
        """Load the network.

        Raises:
            ValueError: there is none for this model.
        """
        shape = resources.kv_shape
        if shape is None:
            raise ValueError("the engine does not provide kv_shape")
        if resources.read_heads is None:
            raise ValueError("the engine does not provide read_heads")
        self._network = Network(resources.read_heads(self._config.network, "predictor"))
        rows, self._kv_heads = resources.max_running, shape.num_kv_heads
        layers = max(shape.num_layers - self._config.dense_layers, 0)
        longest = resources.max_model_len
        most = min(self._budget(longest), longest)
        self._memory = Memory(layers, rows, shape.num_heads, self._kv_heads, longest, most)
        self._steps = np.zeros(rows, np.int64)
        self._seen = np.zeros(rows, np.int64)
        self._was_whole = np.zeros(rows, np.bool_)

    def close(self) -> None:
        """Release the memory."""
        self._network = self._memory = None
        self._places = []

    def admit(self, row: int) -> None:
        """Reset this row's state for a new sequence."""
        if self._memory is not None:
            self._memory.clear(row)
        self._steps[row] = self._seen[row] = 0
        self._was_whole[row] = False

    def budgets(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return 0 (all) at first and periodically; otherwise the number of selected positions."""
        network, memory = self._network, self._memory
        if network is None or memory is None:
            return np.zeros(len(rows), np.int64)
        found = [
            self._budget_of(row, length, network, memory)
            for row, length in zip(rows.tolist(), lengths.tolist(), strict=True)
        ]
        budgets = np.array(found, np.int64)
        most = int(budgets.max(initial=0))
        if most:
            self._few = torch.from_numpy(rows[budgets > 0])
            self._places = memory.places(self._few, most)
        return budgets

    def _budget_of(self, row: int, length: int, network: Network, memory: Memory) -> int:
        """Advance a row to this length; return how many positions it attends to, 0 for all."""
        config, before = self._config, int(self._seen[row])
        if length != before:
            since = memory.chosen_at(row)
            # All layers of the dense step have been observed by now.
            if self._was_whole[row]:
                memory.merge(row, before)
                since = before
            self._steps[row] += 1
            self._seen[row] = length
            is_few = (
                length > max(config.at_least, self._budget(length))
                and self._steps[row] > config.warm_steps
                and length % config.every != 0
                # Steps with drafts are not observed, and may have skipped the interval's end.
                and length - since < config.every
            )
            if is_few and self._was_whole[row]:
                memory.select(row, before, min(self._budget(before), before), network)
            if is_few:
                memory.assign_new_tokens(row, length)
            self._was_whole[row] = not is_few
        return 0 if self._was_whole[row] else memory.slots(row)

    def _budget(self, length: int) -> int:
        """Return the number of positions, at least twice the tokens between selections."""
        return max(math.ceil(length * self._config.budget), 2 * self._config.every)

    def select(
        self,
        layer: int,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        budgets: NDArray[np.int64],
    ) -> torch.Tensor | None:
        """Return the positions selected for this step."""
        del rows, lengths, budgets
        layer -= self._config.dense_layers
        return self._places[layer] if layer >= 0 else None

    def observe(
        self,
        layer: int,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        weights: torch.Tensor,
        places: torch.Tensor | None,
    ) -> None:
        """Record attention weights by KV head."""
        layer -= self._config.dense_layers
        if layer < 0 or self._memory is None:
            return
        if places is None:
            by_head = weights.view(len(rows), self._kv_heads, -1, weights.shape[-1])
            mass = by_head.mean(2, dtype=torch.float32)
            self._memory.record_dense(layer, torch.from_numpy(rows), mass)
        else:
            # The same rows as `rows`, converted once per step.
            self._memory.record_sparse(layer, self._few, lengths, weights.float())
