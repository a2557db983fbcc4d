"""Medusa drafting: predicts a tree of tokens from the last hidden state.

Medusa (Cai et al. 2024, arXiv 2401.10774): small heads in addition to the model's own each predict
one token further. They are independent of each other, so several candidates of each are verified,
as a tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from gatewayd_draft_medusa.tree import Tree, grow
from gatewayd_hooks.speculation import DraftBatch, Drafts, Features

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_draft_medusa.config import MedusaConfig
    from gatewayd_hooks.resources import EngineResources, RunPadded, TargetModel

_NOTHING = -2  # never the position before a sequence's last token


class Medusa:
    """Stores the last hidden state of each row."""

    _target: TargetModel
    _tree: Tree
    _run: RunPadded | None

    def __init__(self, config: MedusaConfig) -> None:
        self._config = config

    def open(self, resources: EngineResources) -> None:
        """Load the heads.

        Raises:
            ValueError: there are none for this model.
        """
        if resources.target is None or resources.read_heads is None:
            raise ValueError(
                "medusa needs the target model, which this engine does not provide to drafters"
            )
        tensors, facts = resources.read_heads(self._config.heads, "medusa")
        self._target = resources.target
        self._tree = grow(facts["accuracy"], self._config.tree_size)
        # Only heads and ranks that the tree uses are computed.
        self._num_heads = int(self._tree.heads.max()) + 1
        self._most_ranks = int(self._tree.ranks.max()) + 1
        self._up, self._up_bias = tensors["up.weight"], tensors["up.bias"]
        self._down, self._residual = tensors["down"], tensors["residual"]
        rows, hidden = resources.max_running, self._target.hidden_size
        self._last = torch.zeros(rows, hidden, dtype=self._up.dtype, device=self._up.device)
        self._position = np.full(rows, _NOTHING, np.int64)
        self._run = None
        if resources.capture is not None:
            self._rows = torch.zeros(rows, dtype=torch.int64, device=self._up.device)
            shape = (rows, self._num_heads, self._most_ranks)
            self._best = torch.zeros(shape, dtype=torch.int64, device=self._up.device)
            self._run = resources.capture(self._launch, "medusa's drafts", self._num_heads)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def admit(self, row: int) -> None:
        """Reset this row's state for a new sequence."""
        self._position[row] = _NOTHING

    @torch.inference_mode()
    def observe(self, features: Features) -> None:
        """Store the last hidden state of each row."""
        # Index of the last state of each row: states of a row are adjacent.
        at = np.flatnonzero(np.diff(features.rows, append=-1))
        rows, hidden = features.rows[at], features.hidden
        # In a pure decode step there is one state per row, and nothing to select.
        if len(at) < len(hidden):
            hidden = hidden.index_select(0, self._to_device(at))
        self._position[rows] = features.positions[at]
        self._last.index_copy_(0, self._to_device(rows), hidden)

    @torch.inference_mode()
    def propose(self, batch: DraftBatch) -> Drafts:
        """Draft for all rows whose hidden state before the last token was observed."""
        tree = self._tree
        width = min(int(batch.limits.max(initial=0)), len(tree.parents))
        tokens = np.zeros((len(batch.rows), width), np.int32)
        parents = np.tile(tree.parents[:width], (len(batch.rows), 1))
        is_known = self._position[batch.rows] == batch.lengths - 2
        counts = np.where(is_known, np.minimum(batch.limits, width), 0).astype(np.int32)
        known = np.flatnonzero(is_known)
        if len(known):
            # The only synchronization of a step.
            best = self._candidates(self._to_device(batch.rows[known])).cpu().numpy()
            tokens[known] = best[:, tree.heads[:width], tree.ranks[:width]]
        return Drafts(tokens, counts, parents)

    def _to_device(self, index: NDArray[np.int64]) -> torch.Tensor:
        """Copy an index to the model's device, asynchronously."""
        sent = torch.from_numpy(np.ascontiguousarray(index))
        if self._last.device.type == "cpu":
            return sent
        return sent.pin_memory().to(self._last.device, non_blocking=True)

    def _candidates(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the best tokens of each head for rows ``[n]``, shape ``[n, heads, ranks]``."""
        if self._run is None:
            return self._predict(self._last.index_select(0, rows))
        # The captured launches read row numbers from this tensor.
        self._rows[: len(rows)].copy_(rows)
        self._run(len(rows))
        return self._best[: len(rows)]

    def _launch(self, num_lines: int) -> None:
        """Draft for the first rows of ``_rows``; later ones are stale and ignored."""
        hidden = self._last.index_select(0, self._rows[:num_lines])
        self._best[:num_lines].copy_(self._predict(hidden))

    def _predict(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the best tokens of each head, ``[n, heads, ranks]``, for ``[n, hidden]``."""
        heads, inner = self._num_heads, self._down.shape[1]
        size = heads * inner
        up = functional.linear(hidden, self._up[:size], self._up_bias[:size])
        # [n, heads * inner] to [heads, n, inner]: one batched product for all heads.
        steps = functional.silu(up).view(-1, heads, inner).transpose(0, 1)
        states = self._residual[:heads] * hidden + torch.bmm(steps, self._down[:heads])
        logits = self._target.logits(states.flatten(0, 1))
        best = logits.topk(self._most_ranks).indices
        return best.view(heads, -1, self._most_ranks).transpose(0, 1)
