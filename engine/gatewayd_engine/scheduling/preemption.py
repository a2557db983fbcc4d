"""Preemption of running sequences when pages are short: choice of victims, and requeueing."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.cache.offload import KvOffload
from gatewayd_engine.process.plugin_faults import attribute_faults
from gatewayd_engine.scheduling.admission import Admission
from gatewayd_engine.state.in_flight import InFlight
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.strategies.active import Strategies
from gatewayd_engine.strategies.kv_compression import snapshot_compression
from gatewayd_hooks.preemption import MAX_PREEMPTIONS, PreemptionMode, Victim
from gatewayd_hooks.scheduling import Plan
from gatewayd_hooks.strategy import Kind


@dataclass(slots=True, eq=False, repr=False)
class Preemption:
    """Return of running sequences to the queue.

    Attributes:
        count: number of preemptions since the start.
    """

    _queue: Queue
    _rows: RunningBatch
    _admission: Admission
    _offload: KvOffload
    _strategies: Strategies
    count: int = 0
    _preempted: list[int] = field(default_factory=list)

    def preempt_planned(self, plan: Plan) -> None:
        """Preempt the sequences that a plan names, before anything else of it is carried out.

        Raises:
            InFlight: a launched step that has not completed computes one of them.
        """
        if plan.preempt is None or not len(plan.preempt):
            return
        # All are checked before any is preempted, so that a plan is carried out as a whole.
        if self._queue.in_flight[plan.preempt].any():
            raise InFlight
        for i in range(len(plan.preempt)):
            # The scheduler has chosen the victim; the preemption strategy chooses the mode.
            self.preempt(self.choose(plan.preempt[i : i + 1]))

    def choose_victim(self, tenant: int | None) -> Victim:
        """Choose a victim; frequently preempted sequences are spared while there are others.

        Args:
            tenant: number of the tenant to choose from; None for all.
        """
        view = self._queue.view
        running = view.running
        if tenant is not None:
            running = running[view.tenant[running] == tenant]
        rested = running[view.preemptions[running] < MAX_PREEMPTIONS]
        return self.choose(rested if len(rested) else running)

    def choose(self, candidates: NDArray[np.int32]) -> Victim:
        """Let the preemption strategy choose a victim among running slots, and its mode."""
        queue, plan = self._queue, self._strategies.plan
        with attribute_faults(Kind.PREEMPTION):
            if plan.learn is not None:
                plan.learn(self._offload.costs)
            slot, mode = plan.preempt(queue.view, candidates)
            if slot not in candidates:
                raise ValueError(f"chose slot {slot}, which is not a candidate")
            return Victim(int(slot), PreemptionMode(mode))

    def preempt(self, victim: Victim) -> None:
        """Preempt a running sequence: it is requeued and keeps its tokens, not its pages.

        Raises:
            InFlight: a launched step that has not completed computes it.
        """
        slot = victim.slot
        if self._queue.in_flight[slot]:
            raise InFlight
        sequence = self._queue[slot]
        self.count += 1
        self._preempted.append(sequence.id)
        self.requeue(sequence, victim.mode)

    def requeue(self, sequence: Sequence, mode: PreemptionMode) -> None:
        """Requeue a sequence that no step computes, without counting it as a preemption."""
        slot, view = sequence.slot, self._queue.view
        if mode is PreemptionMode.SWAP:
            # While it still has its row and its pages.
            self._offload.swap_out(sequence, int(view.num_computed[slot]))
            snapshot_compression(sequence, self._rows, self._strategies)
        view.preemptions[slot] += 1
        self._admission.return_to_queue(slot)

    def drain_preempted(self) -> list[int]:
        """Return the ids of sequences preempted since the last call, once for each preemption."""
        preempted, self._preempted = self._preempted, []
        return preempted
