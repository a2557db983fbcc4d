"""Registration of new sequences with the drafter and the controller."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.process.plugin_faults import attribute_faults
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.strategy import Kind


class Registration:
    """Record of the sequences registered with each strategy, by batch row.

    Args:
        queue: the engine's sequence table.
        rows: the running batch.
        strategies: the active drafter and controller.
    """

    def __init__(self, queue: Queue, rows: RunningBatch, strategies: Strategies) -> None:
        self._queue = queue
        self._num_rows = len(rows.seed)
        self._strategies = strategies
        self._owners: dict[Kind, NDArray[np.int64]] = {}
        self._known: dict[Kind, object] = {}

    def register(self, kind: Kind, slots: NDArray[np.int32], rows: NDArray[np.int64]) -> None:
        """Register the rows whose sequence is new to a strategy."""
        strategy = self._strategies.bound[kind]
        # A strategy that has just been activated has no state for any row.
        if self._known.get(kind) is not strategy:
            self._known[kind] = strategy
            self._owners[kind] = np.full(self._num_rows, -1, np.int64)
        owners, ids = self._owners[kind], self._queue.ids[slots]
        strategy = self._strategies.watched[kind]
        new = np.flatnonzero(owners[rows] != ids)
        if len(new):
            with attribute_faults(kind):
                for i in new.tolist():
                    strategy.admit(int(rows[i]))
            owners[rows[new]] = ids[new]

    def reset(self, kind: Kind) -> None:
        """Forget all registrations with a strategy, because it is not active any more."""
        self._known.pop(kind, None)
