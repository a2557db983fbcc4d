"""Steps on their way: launched, counted as computed, their tokens not known yet.

While a device computes a step the next one is planned, so the queue shows what it will have: each
line's tokens as computed, and one more for those that sample. What that one is only the device
knows until the step lands. Sequences for whom it is the last one are hidden from schedulers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import StepResult


class InFlight(Exception):
    """A sequence would have to give way whose pages a step may be writing to: land that first.

    It is not planned for: an eviction has fewer pages than it said.
    """


class Launched(Protocol):
    """A step that is being computed."""

    def result(self) -> StepResult:
        """Wait for what it produces; asked once."""


@dataclass(frozen=True, slots=True)
class Done:
    """A step that was computed when it was launched."""

    outcome: StepResult

    def result(self) -> StepResult:
        """See ``Launched``."""
        return self.outcome


@dataclass(frozen=True, slots=True)
class InFlightSteps:
    """A launched step and the batch that it computes."""

    batch: StepBatch
    launched: Launched
    began: float
    """When it was planned, seconds of ``time.perf_counter``."""


def take_off(queue: Queue, batch: StepBatch) -> None:
    """Let the queue show a batch as computed."""
    view, slots = queue.view, batch.slots
    view.num_computed[slots] = batch.starts + batch.settled
    queue.in_flight[slots] += batch.settled.astype(np.int32)
    sampling = slots[batch.samples]
    queue.placeholders[sampling] += 1
    view.num_tokens[sampling] += 1
    ending = sampling[view.num_tokens[sampling] >= queue.limit[sampling]]
    if len(ending):
        queue.hide(ending.tolist())


def touch_down(queue: Queue, batch: StepBatch) -> NDArray[np.bool_]:
    """A batch has been computed: its tokens are known now.

    Returns:
        Which of its lines are still the sequences that they were; the others have ended since it
        was launched, and what came of them is to be dropped, shape ``[lines]``.
    """
    slots = batch.slots
    is_alive: NDArray[np.bool_] = queue.ids[slots] == batch.sequences
    alive = slots[is_alive]
    queue.in_flight[alive] -= batch.settled[is_alive].astype(np.int32)
    queue.placeholders[slots[is_alive & batch.samples]] -= 1
    return is_alive
