"""Attention is foreseen from what the last tokens attended to; after AttentionPredictor.

Source: arXiv 2502.04077. What differs is in the README.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from gatewayd_kvc_predictor.config import PredictorConfig
from gatewayd_kvc_predictor.network import ROWS, Network, image

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources

_NEWEST = 2
"""Blocks at the end that are always attended to; so is the first."""
_BEYOND = 3
"""Blocks behind the newest that the network looks at: to it they are empty, not the end."""


class Predictor:
    """Keeps, of each row, layer and key head, what its last tokens attended to, by blocks."""

    def __init__(self, config: PredictorConfig) -> None:
        self._config = config
        self._block = config.block
        self._network: Network | None = None
        self._kv_heads = 0
        # [layers, rows, ROWS, kv_heads, blocks]: of a row the token n lies in place n % ROWS.
        self._history = torch.zeros(0)
        self._total = torch.zeros(0)
        self._steps = np.zeros(0, np.int64)
        self._seen = np.zeros(0, np.int64)

    def open(self, resources: EngineResources) -> None:
        """Read the network.

        Raises:
            ValueError: there is none for this model.
        """
        shape = resources.kv_shape
        if shape is None or resources.read_heads is None:
            raise ValueError("the engine does not tell its attention")
        self._network = Network(resources.read_heads(self._config.network, "predictor"))
        rows, self._kv_heads = resources.max_running, shape.num_kv_heads
        blocks = -(-resources.max_model_len // self._block) + _BEYOND
        each = (shape.num_layers, rows, ROWS, shape.num_kv_heads, blocks)
        # By numpy: memory is taken as it is written to.
        self._history = torch.from_numpy(np.zeros(each, np.float32))
        self._total = torch.from_numpy(np.zeros((*each[:2], *each[3:]), np.float32))
        self._steps = np.zeros(rows, np.int64)
        self._seen = np.zeros(rows, np.int64)

    def close(self) -> None:
        """Give the memory back."""
        self._network = None
        self._history = self._total = torch.zeros(0)

    def admit(self, row: int) -> None:
        """Forget what was attended to."""
        self._history[:, row] = 0
        self._total[:, row] = 0
        self._steps[row] = self._seen[row] = 0

    def budgets(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """All at first, and now and then; else the budget's part of the context."""
        config = self._config
        self._steps[rows] += lengths != self._seen[rows]
        self._seen[rows] = lengths
        is_sparse = (lengths > config.at_least) & (self._steps[rows] > config.warm_steps)
        is_sparse &= lengths % config.every != 0
        least = (_NEWEST + 1) * self._block
        budgets = np.maximum(np.ceil(lengths * config.budget), least)
        return np.where(is_sparse, budgets, 0).astype(np.int64)

    @torch.inference_mode()
    def select(
        self,
        layer: int,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        budgets: NDArray[np.int64],
    ) -> torch.Tensor | None:
        """The blocks of highest scores, with the first and the newest."""
        if layer < self._config.dense_layers or self._network is None:
            return None
        newest = torch.from_numpy((lengths - 1) // self._block)
        scores = self._network(self._image(layer, rows, newest)).view(len(rows), self._kv_heads, -1)
        at, end = torch.arange(scores.shape[-1]), newest[:, None, None]
        scores.masked_fill_((at == 0) | (at > end - _NEWEST), torch.inf)
        scores.masked_fill_(at > end, -torch.inf)
        count = torch.from_numpy(budgets // self._block)[:, None, None]
        most = min(int(count.max()), scores.shape[-1])
        blocks = scores.topk(most, -1).indices
        blocks = blocks.masked_fill_(torch.arange(most) >= count, at.numel())
        places = (blocks[..., None] * self._block + torch.arange(self._block)).flatten(2)
        places.masked_fill_(places >= torch.from_numpy(lengths)[:, None, None], -1)
        # Behind those of a full block there are those that are not there yet.
        return places.sort(-1, descending=True).values

    def _image(self, layer: int, rows: NDArray[np.int64], newest: torch.Tensor) -> torch.Tensor:
        """What the network looks at, of each row and key head."""
        blocks = int(newest.max()) + 1 + _BEYOND
        index = torch.from_numpy(rows)
        # This step's place holds the oldest token, as this step was not attended yet.
        order = torch.from_numpy((self._steps[rows][:, None] + np.arange(ROWS)) % ROWS)
        history = self._history[layer, ..., :blocks][index[:, None], order]
        history = history.transpose(1, 2).flatten(0, 1)
        total = self._total[layer, ..., :blocks][index].flatten(0, 1)
        return image(history, total, newest.repeat_interleave(self._kv_heads))

    @torch.inference_mode()
    def observe(
        self,
        layer: int,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        weights: torch.Tensor,
        places: torch.Tensor | None,
    ) -> None:
        """Add a row to the image; blocks that were not attended to stay as they were."""
        if layer < self._config.dense_layers:
            return
        mass = torch.unflatten(weights.float(), 1, (self._kv_heads, -1)).mean(2)
        index = torch.from_numpy(rows)
        now, before = (torch.from_numpy((self._steps[rows] - back) % ROWS) for back in (0, 1))
        if places is None:
            mass = torch.nn.functional.pad(mass, (0, -mass.shape[-1] % self._block))
            seen = row = torch.unflatten(mass, -1, (-1, self._block)).sum(-1)
        else:
            blocks = (int(lengths.max()) - 1) // self._block + 1
            of = places.clamp_min(0) // self._block
            seen = mass.new_zeros(*mass.shape[:2], blocks).scatter_add_(-1, of, mass)
            is_chosen = torch.zeros_like(seen).scatter_(-1, of, 1.0) > 0
            last = self._history[layer, ..., :blocks][index, before]
            row = torch.where(is_chosen, seen, last)
        blocks = seen.shape[-1]
        self._history[layer, ..., :blocks][index, now] = row
        self._total[layer, ..., :blocks][index] += seen
