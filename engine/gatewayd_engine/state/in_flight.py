"""In-flight steps: launched, counted as computed, their sampled tokens not known yet.

While a device computes a step, the next one is planned. So the queue already shows the outcome:
each sequence's tokens as computed, plus one placeholder token for those that sample, which only
the device knows until the step completes. Sequences for which it is the last token are hidden from
schedulers.
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
    """A sequence to be preempted may still be written to by an in-flight step: complete that first.

    Planning avoids this, but an eviction strategy may free fewer pages than it announced.
    """


class Launched(Protocol):
    """A step that is being computed."""

    def result(self) -> StepResult:
        """Wait for the result; called once."""


@dataclass(frozen=True, slots=True)
class Done:
    """A step that was computed synchronously when it was launched."""

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
    """Time of its planning, seconds of ``time.perf_counter``."""


def mark_launched(queue: Queue, batch: StepBatch) -> None:
    """Count a launched batch as computed in the queue."""
    view, slots, settled = queue.view, batch.slots, batch.settled
    view.num_computed[slots] = batch.starts + settled
    queue.in_flight[slots] += settled
    sampling = slots[batch.samples]
    queue.placeholders[sampling] += 1
    view.num_tokens[sampling] += 1
    # Their last token is being sampled: a later step would compute beyond the limit.
    is_ending = view.num_tokens[sampling] >= queue.limit[sampling]
    if is_ending.any():
        queue.hide(sampling[is_ending].tolist())


def mark_completed(queue: Queue, batch: StepBatch) -> NDArray[np.bool_]:
    """Clear the in-flight counts of a completed batch.

    Returns:
        Whether each batch entry still belongs to the same sequence, shape ``[n]``; the others have
        ended since the launch, and their results must be discarded.
    """
    slots = batch.slots
    is_alive: NDArray[np.bool_] = queue.ids[slots] == batch.sequences
    if is_alive.all():
        queue.in_flight[slots] -= batch.settled
        queue.placeholders[slots[batch.samples]] -= 1
    else:
        queue.in_flight[slots[is_alive]] -= batch.settled[is_alive]
        queue.placeholders[slots[is_alive & batch.samples]] -= 1
    return is_alive
