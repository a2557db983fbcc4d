"""How sequences begin, fork and end, and what clients are told of their ends."""

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
    """All sequences, from their arrival on.

    Args:
        queue: has those that wait or run.
        placement: finds their pages.
        strategies: may fail while they come and go.

    Attributes:
        recovery: answers these faults, and those of a step.
    """

    def __init__(self, queue: Queue, placement: Placement, strategies: Strategies) -> None:
        self._queue = queue
        self._placement = placement
        self._families = ForkGroups()
        self._finished: list[Finished] = []
        self.recovery = Recovery(strategies, placement.rebuild, self._fail)

    @property
    def num_deferred(self) -> int:
        """Answers that wait for the prompt that another one computes."""
        return len(self._families)

    def knows(self, sequence_id: int) -> bool:
        """Whether an id is in use."""
        return self.find(sequence_id) is not None

    def find(self, sequence_id: int) -> Sequence | None:
        """The live sequence that the gateway calls so, also one that waits for a prompt."""
        return self._queue.find(sequence_id) or self._families.find(sequence_id)

    def begin(self, sequences: list[Sequence], *, front: bool) -> None:
        """Queue the answers to one request; the first computes the prompt for all."""
        self._enqueue(self._families.found(sequences), front=front)

    def fork(self, slots: NDArray[np.int32]) -> None:
        """Let the forks of sequences whose prompt is computed go their own way."""
        for slot in slots.tolist():
            parent = self._queue[slot]
            for child in self._families.dissolve(parent):
                self.recovery.fenced(partial(self._placement.fork, parent, child), redo=False)

    def finish(
        self,
        sequence: Sequence,
        reason: int,
        *,
        stop_token: int | None = None,
        error: tuple[str, str] | None = None,
    ) -> None:
        """End a sequence and note why."""
        self._finished.append(Finished(sequence.id, reason, stop_token, error))
        with about(sequence.names):
            _log.debug("sequence %d finished: %s", sequence.id, FINISH_REASONS[reason])
            if reason != ERROR:
                self.fork(np.array([sequence.slot], np.int32))
                self._keep_tail(sequence)
            self._end(sequence)

    def forget(self, sequence_id: int) -> None:
        """End a sequence that nobody waits for; an unknown one is ignored."""
        self._families.forget(sequence_id)
        sequence = self._queue.find(sequence_id)
        if sequence is not None:
            with about(sequence.names):
                _log.debug("sequence %d removed", sequence_id)
                self._keep_tail(sequence)
                self._end(sequence)

    def take_finished(self) -> list[Finished]:
        """Those that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def _fail(self, fault: RequestFault) -> None:
        self.finish(self._queue[fault.slot], ERROR, error=(fault.code, fault.sentence))

    def _keep_tail(self, sequence: Sequence) -> None:
        self.recovery.fenced(partial(self._placement.keep_tail, sequence), redo=False)

    def _end(self, sequence: Sequence) -> None:
        """Release a sequence; forks that waited for its prompt go on by themselves."""
        heirs = self._families.dissolve(sequence)
        self.recovery.fenced(lambda: self._placement.release(sequence), redo=False)
        if heirs:
            heir = self._families.found(heirs)
            heir.was_counted = sequence.was_counted
            self._enqueue(heir, front=sequence.was_admitted)

    def _enqueue(self, sequence: Sequence, *, front: bool) -> None:
        self.recovery.fenced(partial(self._placement.enqueue, sequence, front=front), redo=False)
