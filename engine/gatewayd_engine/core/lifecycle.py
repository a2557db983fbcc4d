"""Sequence lifecycle: submission, forking, finishing, and the finish reasons for clients."""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.process.log_context import about
from gatewayd_engine.process.messages import ERROR, FINISH_REASONS, Finished
from gatewayd_engine.process.plugin_faults import RequestFault
from gatewayd_engine.scheduling.placement import Placement
from gatewayd_engine.state.forks import ForkGroups
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.strategies.active import Strategies
from gatewayd_engine.strategies.recovery import Recovery

_log = logging.getLogger(__name__)


class SequenceLifecycle:
    """Lifecycle of all sequences, from submission on.

    Args:
        queue: waiting and running sequences.
        placement: allocates their pages.
        strategies: the active strategies, whose faults are recovered from.

    Attributes:
        recovery: handles strategy faults here and during steps.
    """

    def __init__(self, queue: Queue, placement: Placement, strategies: Strategies) -> None:
        self._queue = queue
        self._placement = placement
        self._forks = ForkGroups()
        self._finished: list[Finished] = []
        self.recovery = Recovery(strategies, placement.rebuild, self._fail)

    @property
    def num_deferred(self) -> int:
        """Number of forks that wait for a sibling to compute their prompt."""
        return len(self._forks)

    def knows(self, sequence_id: int) -> bool:
        """Whether an id is in use."""
        return self.find(sequence_id) is not None

    def find(self, sequence_id: int) -> Sequence | None:
        """Return a live sequence by its gateway id, including forks that wait for a prompt."""
        return self._queue.find(sequence_id) or self._forks.find(sequence_id)

    def submit(self, sequences: list[Sequence], *, front: bool) -> None:
        """Queue the sequences of one request; the first computes the prompt for all."""
        self._enqueue(self._forks.register(sequences), front=front)

    def fork(self, slots: NDArray[np.int32]) -> None:
        """Queue the forks of sequences whose prompt has been computed."""
        for slot in slots.tolist():
            parent = self._queue[slot]
            for child in self._forks.end_group(parent):
                self.recovery.fenced(partial(self._placement.fork, parent, child), redo=False)

    def finish(
        self,
        sequence: Sequence,
        reason: int,
        *,
        stop_token: int | None = None,
        error: tuple[str, str] | None = None,
    ) -> None:
        """End a sequence and record its finish reason."""
        self._finished.append(Finished(sequence.id, reason, stop_token, error))
        with about(sequence.names):
            _log.debug("sequence %d finished: %s", sequence.id, FINISH_REASONS[reason])
            # While it has pages: forks share the prompt's, and the last one may be cached. After an
            # error none of them is trusted, and forks compute the prompt themselves.
            if reason != ERROR:
                self.fork(np.array([sequence.slot], np.int32))
                self._cache_tail(sequence)
            self._end(sequence)

    def cancel(self, sequence_id: int) -> None:
        """End a sequence whose client is not waiting for it; an unknown id is ignored."""
        # A fork that waits for its leader is not in the queue.
        self._forks.discard(sequence_id)
        sequence = self._queue.find(sequence_id)
        if sequence is not None:
            with about(sequence.names):
                _log.debug("sequence %d removed", sequence_id)
                self._cache_tail(sequence)
                self._end(sequence)

    def drain_finished(self) -> list[Finished]:
        """Return the sequences that finished since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def _fail(self, fault: RequestFault) -> None:
        self.finish(self._queue[fault.slot], ERROR, error=(fault.code, fault.sentence))

    def _cache_tail(self, sequence: Sequence) -> None:
        self.recovery.fenced(partial(self._placement.cache_tail, sequence), redo=False)

    def _end(self, sequence: Sequence) -> None:
        """Release a sequence; forks that waited for its prompt continue without it."""
        orphans = self._forks.end_group(sequence)
        self.recovery.fenced(lambda: self._placement.release(sequence), redo=False)
        if orphans:
            leader = self._forks.register(orphans)
            # One of them computes the prompt for the others. It is counted once per request, and a
            # group that was running continues before new requests.
            leader.was_counted = sequence.was_counted
            self._enqueue(leader, front=sequence.was_admitted)

    def _enqueue(self, sequence: Sequence, *, front: bool) -> None:
        self.recovery.fenced(partial(self._placement.enqueue, sequence, front=front), redo=False)
