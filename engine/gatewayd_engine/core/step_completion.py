"""Lands a step: its tokens are written down, clients told, and ended what has reached its end."""

from __future__ import annotations

import logging
import time
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.core.lifecycle import SequenceLifecycle
from gatewayd_engine.core.prompt_compaction import Compactor
from gatewayd_engine.core.telemetry.engine_seconds import Spending
from gatewayd_engine.core.token_commit import first_told, named, write_down
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.messages import ERROR, LENGTH, STOP, StepOutput
from gatewayd_engine.scheduling.placement import Placement
from gatewayd_engine.speculation.proposer import Speculation
from gatewayd_engine.state.in_flight import InFlightSteps, touch_down
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import StepResult

_log = logging.getLogger(__name__)
NO_STATS = EngineStats()
"""Until the step is over."""


class Landing:
    """What follows when a step has been computed.

    Args:
        queue: of the sequences.
        rows: with their tokens.
        pages: that they hold.
        placement: told which of them are filled.
        lives: of the sequences.
        speculation: shown what came of its guesses.
        spending: shares out the time that steps take.
        compactor: shortens those whose prompts are complete.
        eos: end tokens of the model.
    """

    def __init__(
        self,
        queue: Queue,
        rows: RunningBatch,
        pages: Pages,
        placement: Placement,
        lives: SequenceLifecycle,
        speculation: Speculation,
        spending: Spending,
        compactor: Compactor,
        eos: NDArray[np.int32],
    ) -> None:
        self._queue = queue
        self._rows = rows
        self._pages = pages
        self._placement = placement
        self._lives = lives
        self._recovery = lives.recovery
        self._speculation = speculation
        self._spending = spending
        self._compactor = compactor
        self._eos = eos

    def land(self, flight: InFlightSteps, began: float, *, is_last: bool) -> StepOutput:
        """Wait for a step and write down what it produced.

        Args:
            flight: the step.
            began: when it did, seconds of ``time.perf_counter``.
            is_last: whether no other has been launched since.
        """
        batch, result = flight.batch, flight.launched.result()
        self._spending.landed(batch, flight.began, time.perf_counter())
        self._pages.settle()
        self._pages.defers = not is_last
        is_alive = touch_down(self._queue, batch)
        if not is_alive.all():
            result = result.of(is_alive, batch.rows)
        # Before sequences end, whose rows it speaks of.
        self._recovery.fenced(partial(self._speculation.observe, batch, result), redo=False)
        output = self._commit(batch, result, is_alive)
        self._recovery.fenced(
            lambda: self._speculation.report(batch, result, time.perf_counter() - began),
            redo=False,
        )
        return output

    def land_last(self, flight: InFlightSteps) -> None:
        """Land a step behind which there will be none; if it fails, nothing of it is kept."""
        try:
            self.land(flight, time.perf_counter(), is_last=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not cost the rest
            _log.warning("last step lost: %r", error)
            # What it computed is not known, and what it held is free for what is.
            self._pages.defers = False
            self._pages.settle()

    def _commit(
        self, batch: StepBatch, result: StepResult, is_alive: NDArray[np.bool_]
    ) -> StepOutput:
        queue, ids = self._queue, batch.sequences
        tokens, lost = result.tokens, result.lost
        written = write_down(queue, self._rows, batch, tokens, self._eos)
        slots = batch.slots[tokens.lines]
        for of, end in result.reported:
            self._rows.reported[of] = end
        failed = result.failed + [(i, *lost[i]) for i in lost]
        if result.failed:
            is_alive = is_alive.copy()
            is_alive[[line for line, _, _ in result.failed]] = False
        self._publish(batch.slots[is_alive])
        over, begins = written.over, written.begins
        if lost:
            stays = ~np.isin(tokens.lines, list(lost))
            over, begins = over & stays, begins & stays
        for i in np.flatnonzero(over).tolist():
            stop = int(written.stop[i])
            if stop >= 0:
                self._lives.finish(queue[int(slots[i])], STOP, stop_token=stop)
            else:
                self._lives.finish(queue[int(slots[i])], LENGTH)
        self._lives.fork(slots[begins])
        for line, code, sentence in failed:
            sequence = queue[int(batch.slots[line])]
            self._placement.scrub(sequence)
            self._lives.finish(sequence, ERROR, error=(code, sentence))
        self._recovery.fenced(partial(self._compactor.landed, batch), redo=False)
        return StepOutput(
            stats=NO_STATS,
            sequences=np.repeat(ids[tokens.lines], written.told).tobytes(),
            tokens=tokens.ids[np.arange(tokens.ids.shape[1]) < written.told[:, None]].tobytes(),
            logprobs=named(first_told(result.logprobs, tokens.lines, written.told), ids),
            prompt_logprobs=named(result.prompt_logprobs, ids),
            pooled=named(result.pooled, ids),
        )

    def _publish(self, slots: NDArray[np.int32]) -> None:
        self._recovery.fenced(lambda: self._placement.prefixes.publish(slots), redo=False)
