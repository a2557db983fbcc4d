"""Sparse-attention requests to a KV compression plugin, and validation of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.process.plugin_faults import StrategyFault, attribute_faults
from gatewayd_engine.state.sequence import CompressionState
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_hooks.strategy import Kind

_KIND = Kind.KV_COMPRESSION


class SelectingCompression(Protocol):
    """The compression strategy in use, which may change between two steps."""

    @property
    def selecting(self) -> Any | None:  # noqa: ANN401 - watched
        """Strategy that implements ``Selects``; None if there is none."""

    def fail(self, error: BaseException) -> None:
        """Disable selection after a fault of the strategy."""


class SelectionState(Protocol):
    """Columns of batch rows that selection reads and writes; see ``RunningBatch``."""

    @property
    def exact_until(self) -> NDArray[np.int32]:
        """Leading tokens of each row computed with dense attention; lowered by selection."""

    @property
    def decodes_from(self) -> NDArray[np.int32]:
        """First decoded position of each row; only read."""

    @property
    def followed(self) -> NDArray[np.int64]:
        """Sequence of each row that the strategy has state for; written by selection."""

    follower: Any

    @property
    def known(self) -> dict[int, CompressionState]:
        """Saved strategy state of resumed rows; consumed by selection."""


@dataclass(frozen=True, slots=True)
class SelectionRequest:
    """Decoding sequences of a step without drafts, and which of them use sparse attention.

    Attributes:
        lines: indices of the sequences in the batch, shape ``[n]``.
        tokens: indices of their tokens in the batch, shape ``[n]``.
        rows: their batch rows, shape ``[n]``.
        lengths: their context lengths, including the token being computed, shape ``[n]``.
        sparse: indices of those with sparse attention, ascending, shape ``[m]``.
        sparse_rows, sparse_lengths: rows and lengths of those, shape ``[m]``.
        budgets: most KV slots that each of those may read, shape ``[m]``.
    """

    lines: NDArray[np.int64]
    tokens: NDArray[np.int64]
    rows: NDArray[np.int64]
    lengths: NDArray[np.int64]
    sparse: NDArray[np.int64]
    sparse_rows: NDArray[np.int64]
    sparse_lengths: NDArray[np.int64]
    budgets: NDArray[np.int64]


class Selected(NamedTuple):
    """KV slots selected for sparse attention.

    Attributes:
        layers: layers with sparse attention.
        places: KV slots of each layer, shape ``[layers, m, kv_heads, k]``; -1 for padding.
        is_full: whether there is no padding.
    """

    layers: list[int]
    places: torch.Tensor
    is_full: bool


class Selection:
    """Calls to the compression strategy during a step.

    A fault of the strategy disables selection at once: the rest of the step uses dense attention.

    Args:
        shape: attention shape of the model.
        compression: the compression strategy in use.
        rows: batch rows; ``exact_until`` is lowered where a token uses sparse attention.
    """

    def __init__(
        self, shape: AttentionShape, compression: SelectingCompression, rows: SelectionState
    ) -> None:
        self._kv_heads = shape.num_kv_heads
        self._compression = compression
        self._rows = rows
        self._strategy: Any = None

    def start_step(self, batch: StepBatch) -> SelectionRequest | None:
        """Ask the strategy for this step's budgets; None without a strategy or sequences."""
        strategy = self._compression.selecting
        if strategy is not self._strategy:
            # A new instance has no state: its rows have to be admitted again.
            self._strategy = self._rows.follower = strategy
            self._rows.followed[:] = -1
        if strategy is None:
            return None
        decode = slice(batch.num_decode)
        # A chunk of one token is still part of the prompt.
        is_asked = batch.starts[decode] >= self._rows.decodes_from[batch.rows[decode]]
        is_asked &= batch.counts[decode] == 1
        if batch.fronts is not None:
            # A compacted prefix is small already, and meant to be read completely.
            is_asked &= batch.fronts.shift[decode] == 0
        lines = np.flatnonzero(is_asked)
        if not len(lines):
            return None
        rows, starts = batch.rows[lines], batch.starts[lines]
        lengths = starts + 1
        try:
            with attribute_faults(_KIND):
                self._sync_rows(rows, batch.sequences[lines])
                # Copies: a plugin must not modify arrays of the engine.
                budgets = strategy.budgets(rows.copy(), lengths.copy())
                _check_budgets(budgets, len(rows))
        except StrategyFault as fault:
            self._fail(fault)
            return None
        sparse = np.flatnonzero((budgets > 0) & (budgets < lengths))
        few, their_lengths = rows[sparse], lengths[sparse]
        budgets = budgets[sparse].astype(np.int64)
        if len(sparse):
            # Lowered before anything is computed, so that these tokens never enter the prefix
            # cache.
            exact_until = self._rows.exact_until
            exact_until[few] = np.minimum(exact_until[few], starts[sparse])
        return SelectionRequest(
            lines,
            batch.last[lines],
            rows,
            lengths,
            sparse,
            few,
            their_lengths,
            budgets,
        )

    @property
    def is_on(self) -> bool:
        """Whether the selection of this step is still valid; a fault invalidates it."""
        return self._strategy is not None

    def select(self, layers: Sequence[int], asked: SelectionRequest) -> Selected | None:
        """Ask for the KV slots of the sparse sequences, by layer.

        Args:
            layers: layers without a window.
            asked: request of the step.

        Returns:
            The selection; None if attention is dense in all layers.
        """
        if self._strategy is None or not len(asked.sparse):
            return None
        found: dict[int, torch.Tensor] = {}
        try:
            with attribute_faults(_KIND):
                given = asked.sparse_rows.copy(), asked.sparse_lengths.copy(), asked.budgets.copy()
                most = int(asked.budgets.max())
                for layer in layers:
                    places = self._strategy.select(layer, *given)
                    if places is not None:
                        self._check_shape(places, len(asked.sparse), most)
                        found[layer] = places
                return _checked(found, asked) if found else None
        except StrategyFault as fault:
            self._fail(fault)
            return None

    def show(
        self,
        layer: int,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        weights: torch.Tensor,
        places: torch.Tensor | None,
    ) -> None:
        """Report attention weights to the strategy; see ``Selects.observe``."""
        if self._strategy is None:
            return
        try:
            with attribute_faults(_KIND):
                # Copies: a plugin must not modify arrays of the engine.
                self._strategy.observe(layer, rows.copy(), lengths.copy(), weights, places)
        except StrategyFault as fault:
            self._fail(fault)

    def _sync_rows(self, rows: NDArray[np.int64], sequences: NDArray[np.int64]) -> None:
        """Notify the strategy of sequences that are new in their rows, or were resumed."""
        followed = self._rows.followed
        for row in rows[followed[rows] != sequences].tolist():
            known = self._rows.known.pop(row, None)
            if known is not None and known.strategy is self._strategy:
                self._strategy.enter(row, known.state)
            else:
                self._strategy.admit(row)
        followed[rows] = sequences

    def _check_shape(self, places: torch.Tensor, count: int, most: int) -> None:
        if not isinstance(places, torch.Tensor) or places.dtype != torch.int64:
            raise ValueError("selected positions are not an int64 tensor")
        if places.dim() != 3 or places.shape[:2] != (count, self._kv_heads):
            raise ValueError(
                f"selected positions have shape {list(places.shape)}, expected "
                f"[{count}, {self._kv_heads}, k]"
            )
        if not 0 < places.shape[2] <= most:
            raise ValueError(f"{places.shape[2]} positions are selected; the budget is 1 to {most}")

    def _fail(self, fault: StrategyFault) -> None:
        # ``is_on`` is False from here on, for the remaining layers of this step too.
        self._strategy = None
        self._compression.fail(fault)


def _checked(found: dict[int, torch.Tensor], asked: SelectionRequest) -> Selected:
    """Reject KV slots beyond a sequence's context, which may be another's, and duplicates.

    Sorting in numpy takes a few microseconds, unlike checks of each slot in Python.
    """
    most = max(places.shape[2] for places in found.values())
    together = torch.stack(
        [
            places
            if places.shape[2] == most
            else pad(places, (0, most - places.shape[2]), value=-1)
            for places in found.values()
        ]
    )
    # Sorted, so that bounds are at both ends and duplicates are adjacent.
    ordered = np.sort(together.numpy(), -1)
    lowest = int(ordered[..., 0].min())
    if lowest < -1 or (ordered[..., -1] >= asked.sparse_lengths[:, None]).any():
        raise ValueError("a selected position is outside the sequence's context")
    if ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any():
        raise ValueError("a position is selected twice")
    if (ordered[..., -1] < 0).any():
        raise ValueError("no position is selected for one of the heads")
    return Selected(list(found), together, is_full=lowest >= 0)


def _check_budgets(budgets: object, count: int) -> None:
    if not isinstance(budgets, np.ndarray) or budgets.shape != (count,):
        raise ValueError(f"budgets are not an array of shape [{count}]")
    if not np.issubdtype(budgets.dtype, np.integer) or (budgets < 0).any():
        raise ValueError("budgets are not non-negative integers")
