"""Tells the drafter and the controller of sequences that they have not seen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.process.plugin_faults import blame
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.strategy import Kind


class Registration:
    """Whose rows each strategy knows.

    Args:
        queue: of the sequences.
        rows: of the batch.
        strategies: the drafter and the controller.
    """

    def __init__(self, queue: Queue, rows: RunningBatch, strategies: Strategies) -> None:
        self._queue = queue
        self._num_rows = len(rows.seed)
        self._strategies = strategies
        self._owners: dict[Kind, NDArray[np.int64]] = {}
        self._known: dict[Kind, object] = {}

    def make(self, kind: Kind, slots: NDArray[np.int32], rows: NDArray[np.int64]) -> None:
        """Tell a strategy which of these rows have another sequence than it knows."""
        strategy = self._strategies.bound[kind]
        if self._known.get(kind) is not strategy:
            self._known[kind] = strategy
            self._owners[kind] = np.full(self._num_rows, -1, np.int64)
        owners, ids = self._owners[kind], self._queue.ids[slots]
        strategy = self._strategies.watched[kind]
        new = np.flatnonzero(owners[rows] != ids)
        if len(new):
            with blame(kind):
                for i in new.tolist():
                    strategy.admit(int(rows[i]))
            owners[rows[new]] = ids[new]

    def forget(self, kind: Kind) -> None:
        """Whoever comes next knows nobody."""
        self._known.pop(kind, None)
