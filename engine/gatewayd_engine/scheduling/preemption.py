"""Who gives way when pages are short, and how it waits again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.cache.offload import KvOffload
from gatewayd_engine.process.plugin_faults import blame
from gatewayd_engine.scheduling.admission import Admission
from gatewayd_engine.state.in_flight import InFlight
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.strategies.active import Strategies
from gatewayd_engine.strategies.kv_compression import take_along
from gatewayd_hooks.preemption import MAX_PREEMPTIONS, PreemptionMode, Victim
from gatewayd_hooks.scheduling import Plan
from gatewayd_hooks.strategy import Kind


class Preemption:
    """Puts running sequences back into the queue.

    Attributes:
        count: of preemptions, since the start.
    """

    def __init__(
        self,
        queue: Queue,
        rows: RunningBatch,
        admission: Admission,
        outside: KvOffload,
        strategies: Strategies,
    ) -> None:
        self._queue = queue
        self._rows = rows
        self._admission = admission
        self._outside = outside
        self._strategies = strategies
        self.count = 0
        self._preempted: list[int] = []

    def make_way(self, plan: Plan) -> None:
        """Let those wait again whom the scheduler puts out, before anything is changed for it.

        Raises:
            InFlight: a step that has not landed computes one of them.
        """
        if plan.preempt is None or not len(plan.preempt):
            return
        if self._queue.in_flight[plan.preempt].any():
            raise InFlight
        for i in range(len(plan.preempt)):
            # The scheduler has chosen who; the preemption says how.
            self.preempt(self.choose(plan.preempt[i : i + 1]))

    def victim(self, tenant: int | None) -> Victim:
        """Choose who gives way; whoever did so often is spared while there are others.

        Args:
            tenant: of whom; None for anybody.
        """
        view = self._queue.view
        running = view.running
        if tenant is not None:
            running = running[view.tenant[running] == tenant]
        rested = running[view.preemptions[running] < MAX_PREEMPTIONS]
        return self.choose(rested if len(rested) else running)

    def choose(self, candidates: NDArray[np.int32]) -> Victim:
        """Let the preemption choose one of some running slots, and how it waits again."""
        queue, plan = self._queue, self._strategies.plan
        with blame(Kind.PREEMPTION):
            if plan.learn is not None:
                plan.learn(self._outside.costs)
            slot, mode = plan.preempt(queue.view, candidates)
            if slot not in candidates:
                raise ValueError(f"chose slot {slot}, which is no candidate")
            return Victim(int(slot), PreemptionMode(mode))

    def preempt(self, victim: Victim) -> None:
        """Put a running sequence back into the queue; it keeps its tokens, not its pages.

        Raises:
            InFlight: a step that has not landed computes it.
        """
        slot = victim.slot
        if self._queue.in_flight[slot]:
            raise InFlight
        sequence = self._queue[slot]
        self.count += 1
        self._preempted.append(sequence.id)
        self.put_out(sequence, victim.mode)

    def put_out(self, sequence: Sequence, mode: PreemptionMode) -> None:
        """The same, counted as no preemption; no step computes it."""
        slot, view = sequence.slot, self._queue.view
        if mode is PreemptionMode.SWAP:
            self._outside.keep(sequence, int(view.num_computed[slot]))
            take_along(sequence, self._rows, self._strategies)
        view.preemptions[slot] += 1
        self._admission.put_back(slot)

    def take_preempted(self) -> list[int]:
        """Who was put back into the queue since the last call, once for each time."""
        preempted, self._preempted = self._preempted, []
        return preempted
