"""Asks a KV compression what decoding attends to, and looks its answers over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.process.plugin_faults import StrategyFault, blame
from gatewayd_engine.state.sequence import CompressionState
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_hooks.strategy import Kind

_KIND = Kind.KV_COMPRESSION


class CompressionSlot(Protocol):
    """Where the strategy sits; it may change between two steps."""

    @property
    def selecting(self) -> Any | None:  # noqa: ANN401 - watched
        """What follows ``Selects``; None for nobody."""

    def fail(self, error: BaseException) -> None:
        """Let nobody select from now on."""


class Followed(Protocol):
    """Columns of rows that selection reads and writes; see ``RunningBatch``."""

    @property
    def exact_until(self) -> NDArray[np.int32]:
        """Written to."""

    @property
    def decodes_from(self) -> NDArray[np.int32]:
        """Read."""

    @property
    def followed(self) -> NDArray[np.int64]:
        """Written to."""

    follower: Any

    @property
    def known(self) -> dict[int, CompressionState]:
        """Taken from."""


@dataclass(frozen=True, slots=True)
class SelectionRequest:
    """The lines of a step that compute one token, and who of them attends to few places.

    Attributes:
        lines: of the batch, shape ``[n]``.
        tokens: theirs among the batch's, shape ``[n]``.
        rows: theirs, shape ``[n]``.
        lengths: tokens that each has, the one that is computed included, shape ``[n]``.
        sparse: which of them attend to few, ascending, shape ``[m]``.
        sparse_rows, sparse_lengths: of those, shape ``[m]``.
        budgets: most places of those, shape ``[m]``.
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
    """What lines attend to, in the layers in which they attend to few places.

    Attributes:
        layers: which.
        places: of each, shape ``[layers, m, kv_heads, k]``; -1 for none.
        is_full: whether there is none that is none.
    """

    layers: list[int]
    places: torch.Tensor
    is_full: bool


class Selection:
    """What a compression is asked in a step.

    A fault of it ends selection in place: from there on the step attends to all.

    Args:
        shape: the model's attention.
        seat: where it sits.
        rows: what is known of sequences; where a token attends to few, ``exact_until`` is lowered.
    """

    def __init__(self, shape: AttentionShape, seat: CompressionSlot, rows: Followed) -> None:
        self._kv_heads = shape.num_kv_heads
        self._seat = seat
        self._rows = rows
        self._strategy: Any = None

    def begin(self, batch: StepBatch) -> SelectionRequest | None:
        """Ask who attends to few in this step; None if nobody is there to be asked."""
        strategy = self._seat.selecting
        if strategy is not self._strategy:
            self._strategy = self._rows.follower = strategy
            self._rows.followed[:] = -1
        if strategy is None:
            return None
        decode = slice(batch.num_decode)
        # A chunk of one token is still a part of what was there at first.
        is_asked = batch.starts[decode] >= self._rows.decodes_from[batch.rows[decode]]
        is_asked &= batch.counts[decode] == 1
        if batch.fronts is not None:
            # The few that stand for many are there to be read.
            is_asked &= batch.fronts.shift[decode] == 0
        lines = np.flatnonzero(is_asked)
        if not len(lines):
            return None
        rows, starts = batch.rows[lines], batch.starts[lines]
        lengths = starts + 1
        try:
            with blame(_KIND):
                self._admit(rows, batch.sequences[lines])
                budgets = strategy.budgets(rows.copy(), lengths.copy())
                _check_budgets(budgets, len(rows))
        except StrategyFault as fault:
            self._fail(fault)
            return None
        sparse = np.flatnonzero((budgets > 0) & (budgets < lengths))
        few, their_lengths = rows[sparse], lengths[sparse]
        budgets = budgets[sparse].astype(np.int64)
        if len(sparse):
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
        """Whether what was selected in this step still counts: a fault ends it."""
        return self._strategy is not None

    def select(self, layers: Sequence[int], asked: SelectionRequest) -> Selected | None:
        """Places for the lines that attend to few, of these layers; None for all in all of them."""
        if self._strategy is None or not len(asked.sparse):
            return None
        found: dict[int, torch.Tensor] = {}
        try:
            with blame(_KIND):
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
        """Show what was attended to; see ``Selects.observe``."""
        if self._strategy is None:
            return
        try:
            with blame(_KIND):
                self._strategy.observe(layer, rows, lengths, weights, places)
        except StrategyFault as fault:
            self._fail(fault)

    def _admit(self, rows: NDArray[np.int64], sequences: NDArray[np.int64]) -> None:
        """Tell of sequences that came into their rows, or came back, since they were seen."""
        followed = self._rows.followed
        for row in rows[followed[rows] != sequences].tolist():
            known = self._rows.known.pop(row, None)
            if known is not None and known.whose is self._strategy:
                self._strategy.enter(row, known.what)
            else:
                self._strategy.admit(row)
        followed[rows] = sequences

    def _check_shape(self, places: torch.Tensor, count: int, most: int) -> None:
        if not isinstance(places, torch.Tensor) or places.dtype != torch.int64:
            raise ValueError("places are no tensor of int64")
        if places.dim() != 3 or places.shape[:2] != (count, self._kv_heads):
            raise ValueError(
                f"places have shape {list(places.shape)}, not [{count}, {self._kv_heads}, k]"
            )
        if not 0 < places.shape[2] <= most:
            raise ValueError(f"{places.shape[2]} places for a budget of {most}")

    def _fail(self, fault: StrategyFault) -> None:
        self._strategy = None
        self._seat.fail(fault)


def _checked(found: dict[int, torch.Tensor], asked: SelectionRequest) -> Selected:
    """Refuse what is not there, which would be another sequence's, and what is there twice.

    Sorted by numpy it takes a few microseconds: nothing is asked of each place in Python.
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
    ordered = np.sort(together.numpy(), -1)
    lowest = int(ordered[..., 0].min())
    if lowest < -1 or (ordered[..., -1] >= asked.sparse_lengths[:, None]).any():
        raise ValueError("a place that the sequence does not have")
    if ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any():
        raise ValueError("a place twice, which would count double")
    if lowest < 0 and int(together[..., 0].min()) < 0:
        raise ValueError("no place at all for one of the heads")
    return Selected(list(found), together, is_full=lowest >= 0)


def _check_budgets(budgets: object, count: int) -> None:
    if not isinstance(budgets, np.ndarray) or budgets.shape != (count,):
        raise ValueError(f"budgets are no array of {count}")
    if not np.issubdtype(budgets.dtype, np.integer) or (budgets < 0).any():
        raise ValueError("budgets are no numbers of places")
