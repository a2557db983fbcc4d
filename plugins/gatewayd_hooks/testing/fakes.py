"""Simulates the engine for a scheduler: no model, no tensors, the engine's rules."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.scheduling import Plan, SchedulerStrategy
from gatewayd_hooks.testing.simulation.fake_sequence import FakeSequence
from gatewayd_hooks.testing.simulation.queue_columns import grow, read_only, view_of
from gatewayd_hooks.testing.simulation.resources import FIRST_SLOTS, engine_resources

__all__ = ["FakeQueue", "FakeSequence", "engine_resources"]


class FakeQueue:
    """Queue whose sequences are computed as a scheduler plans, by the rules of ``Plan``.

    Each step checks the plan and fails the test when it breaks a rule. Pages are counted only; when
    there are none for a running sequence, the one admitted last is preempted.

    Args:
        scheduler: opened.
        resources: of the simulated engine.
        clock: seconds; without one, a second passes with each arrival.

    Attributes:
        view: passed to the scheduler.
        running: in order of admission.
        waiting: in no particular order.
        parked: held by an operator; the scheduler must not know of them.
        finished: those that reached their length, in order.
        preemptions: number of preemptions so far.
        idle_steps: consecutive last steps without progress while sequences ran.
    """

    def __init__(
        self,
        scheduler: SchedulerStrategy,
        resources: EngineResources,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._num_pages = resources.num_pages
        self._by_slot: list[FakeSequence | None] = [None] * FIRST_SLOTS
        self._clock = clock
        self.running: list[FakeSequence] = []
        self.waiting: list[FakeSequence] = []
        self.parked: list[FakeSequence] = []
        self.finished: list[FakeSequence] = []
        self.preemptions = self.idle_steps = 0
        self.view = view_of(resources, self._uncached)

    def __len__(self) -> int:
        return len(self.running) + len(self.waiting)

    # Requests in and out

    def arrive(
        self,
        prompt: int,
        output: int,
        *,
        priority: int = 1,
        tenant: int = 0,
        cached: int = 0,
        front: bool = False,
        weight: float = 1.0,
        deadline: float = float("inf"),
    ) -> FakeSequence:
        """Add a sequence.

        Args:
            prompt: tokens of its prompt, at least 1.
            output: tokens it will generate, at least 1.
            priority: its class.
            tenant: its tenant's number.
            cached: prompt tokens that the prefix cache knows.
            front: whether it resumes.
            weight: fair-share weight of its tenant.
            deadline: seconds from now to the first token that is wanted.
        """
        if None not in self._by_slot:
            grow(self.view)
            self._by_slot.extend([None] * len(self._by_slot))
        # The last free one, so that slots are not in order of arrival.
        slot = len(self._by_slot) - 1 - self._by_slot[::-1].index(None)
        sequence = FakeSequence(slot, prompt + output, min(cached, prompt - 1), priority, tenant)
        self._by_slot[slot] = sequence
        view = self.view
        view.num_tokens[slot] = prompt
        view.num_computed[slot] = 0
        view.priority[slot] = priority
        view.tenant[slot] = tenant
        if self._clock is None:
            view.now += 1.0
        else:
            view.now = self._clock()
        view.arrival[slot] = view.now
        view.weight[slot] = weight
        view.deadline[slot] = view.now + deadline
        view.preemptions[slot] = 0
        self.waiting.append(sequence)
        self._scheduler.enqueue(slot, view, front=front)
        return sequence

    def hold(self, sequence: FakeSequence, steps: int, *, is_shown: bool = True) -> None:
        """Hold a waiting sequence for some steps: grants to it are ignored.

        Args:
            sequence: one that waits.
            steps: number of steps.
            is_shown: whether ``held`` contains it, or the scheduler grants first, as when two
                arrive together.
        """
        sequence.held, sequence.is_shown = steps, is_shown

    def cancel(self, sequence: FakeSequence) -> None:
        """Remove a sequence, running or waiting."""
        if not sequence.is_running:
            self._scheduler.dequeue(sequence.slot)
        self._remove(sequence)

    def preempt(self, sequence: FakeSequence) -> None:
        """Return a running sequence to the waiting ones."""
        self.preemptions += 1
        self.idle_steps = 0
        self.view.preemptions[sequence.slot] += 1
        self.running.remove(sequence)
        self.waiting.append(sequence)
        sequence.is_running = False
        sequence.pages = 0
        self.view.num_computed[sequence.slot] = 0
        self._show_running()
        self._scheduler.enqueue(sequence.slot, self.view, front=True)

    def park(self, sequence: FakeSequence) -> None:
        """Hold a sequence that runs or waits for an operator, until ``unpark``."""
        if sequence.is_running:
            self.preempt(sequence)
        self.waiting.remove(sequence)
        self.parked.append(sequence)
        self._scheduler.dequeue(sequence.slot)

    def unpark(self, sequence: FakeSequence) -> None:
        """Return a held sequence to the waiting ones."""
        self.parked.remove(sequence)
        self.waiting.append(sequence)
        self._enqueue_again(sequence)

    def bump(self, sequence: FakeSequence, priority: int | None) -> None:
        """Change the class of a sequence; None puts it first in the one it has."""
        if priority is not None:
            sequence.priority = self.view.priority[sequence.slot] = priority
        else:
            self.view.urgent = self.view.urgent | {sequence.slot}
            if sequence.is_running:
                self.running.sort(key=lambda one: one is not sequence)
                self._show_running()
        if sequence in self.waiting:
            self._scheduler.dequeue(sequence.slot)
            self._enqueue_again(sequence)

    def _enqueue_again(self, sequence: FakeSequence) -> None:
        slot, view = sequence.slot, self.view
        front = slot in view.urgent or bool(view.preemptions[slot])
        self._scheduler.enqueue(slot, view, front=front)

    def _remove(self, sequence: FakeSequence) -> None:
        (self.running if sequence.is_running else self.waiting).remove(sequence)
        self._by_slot[sequence.slot] = None
        self.view.urgent = self.view.urgent - {sequence.slot}
        self.idle_steps = 0
        sequence.slot = -1
        sequence.is_running = False
        sequence.pages = 0
        self._show_running()

    def _show_running(self) -> None:
        self.view.running = np.array([s.slot for s in self.running], np.int32)

    def _uncached(self, slot: int) -> int:
        sequence = self._by_slot[slot]
        assert sequence is not None, f"asked about slot {slot}, which no sequence has"
        assert not sequence.is_running, f"asked what slot {slot} would compute, which runs"
        assert sequence not in self.parked, f"asked about slot {slot}, which has gone"
        return max(1, int(self.view.num_tokens[slot]) - sequence.cached)

    # Steps

    @property
    def free_pages(self) -> int:
        """Pages without references."""
        return self._num_pages - sum(sequence.pages for sequence in self.running)

    def step(self) -> Plan:
        """Plan a step, check the plan and execute it."""
        self.view.free_pages = self.free_pages
        if self._clock is not None:
            self.view.now = self._clock()
        held = [sequence for sequence in self.waiting if sequence.held]
        self.view.held = frozenset(sequence.slot for sequence in held if sequence.is_shown)
        with read_only(self.view):
            plan = self._scheduler.plan(self.view)
        self.check(plan)
        before = self.preemptions
        preempted = () if plan.preempt is None else plan.preempt.tolist()
        for sequence in [self._by_slot[slot] for slot in preempted]:
            assert sequence is not None
            self.preempt(sequence)
        grants = [
            (sequence, count)
            for slot, count in zip(plan.slots.tolist(), plan.tokens.tolist(), strict=True)
            if (sequence := self._by_slot[slot]) is not None
        ]
        waiting = [(s, count) for s, count in grants if not (s.is_running or s.held)]
        # Running sequences get their pages first, and if one is preempted for them nothing is
        # admitted.
        stays = self.preemptions
        for sequence, count in [grant for grant in grants if grant[0].is_running]:
            self._allocate(sequence, count)
        if self.preemptions == stays:
            self._admit(waiting)
        self.view.unplaced = frozenset(s.slot for s, _ in waiting if not s.is_running)
        for sequence in held:
            sequence.held -= 1
        # Steps that neither compute nor preempt: two in a row break the rule of ``Plan``.
        is_idle = not any(s.is_running for s, _ in grants) and self.preemptions == before
        self.idle_steps = self.idle_steps + 1 if is_idle and self.running else 0
        for sequence, count in grants:
            if sequence.is_running:
                self._compute(sequence, count)
        return plan

    def check(self, plan: Plan) -> None:
        """Fail the test when a plan breaks a rule of ``Plan``."""
        view = self.view
        slots, tokens = plan.slots.tolist(), plan.tokens.tolist()
        assert len(slots) == len(tokens), "as many grants as slots"
        assert len(set(slots)) == len(slots), "no slot is granted twice"
        assert sum(tokens) <= view.token_budget, "the sum is within the budget"
        preempted = [] if plan.preempt is None else plan.preempt.tolist()
        assert len(set(preempted)) == len(preempted), "no sequence is preempted twice"
        assert set(preempted) <= set(view.running.tolist()), "only running sequences are preempted"
        assert set(preempted).isdisjoint(slots), "a preempted sequence is granted nothing"
        admitted = -len(preempted)
        for slot, count in zip(slots, tokens, strict=True):
            assert 0 <= slot < len(self._by_slot), f"slot {slot} is out of range"
            sequence = self._by_slot[slot]
            is_here = sequence is not None and sequence not in self.parked
            assert is_here, f"slot {slot} neither runs nor waits"
            assert sequence is not None
            need = int(view.num_tokens[slot] - view.num_computed[slot])
            assert 1 <= count <= need, f"slot {slot} needs {need} tokens and was granted {count}"
            admitted += not sequence.is_running
        assert len(self.running) + admitted <= view.max_running, "at most max_running sequences run"

    def _pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.view.page_size)

    def _allocate(self, sequence: FakeSequence, count: int) -> None:
        """Allocate pages for a running sequence's grant, preempting others if necessary."""
        if not sequence.is_running:
            return
        reach = int(self.view.num_computed[sequence.slot]) + count
        if self._pages_for(reach) <= sequence.pages:
            return
        while sequence.is_running and self._pages_for(reach) - sequence.pages > self.free_pages:
            self.preempt(self.running[-1])
        if sequence.is_running:
            sequence.pages = max(sequence.pages, self._pages_for(reach))

    def _admit(self, grants: list[tuple[FakeSequence, int]]) -> None:
        """Admit in the order of the plan, until there are not enough pages for one's tokens."""
        for sequence, _ in grants:
            slot = sequence.slot
            num_tokens = int(self.view.num_tokens[slot])
            # As in the engine: pages that running sequences still need stay free for them.
            promised = sum(
                max(0, self._pages_for(int(self.view.num_tokens[other.slot])) - other.pages)
                for other in self.running
            )
            if self._pages_for(num_tokens) > self.free_pages - promised:
                return
            self.waiting.remove(sequence)
            self.running.append(sequence)
            sequence.is_running = True
            # Cached pages are shared, in the engine; here each sequence has its own.
            sequence.pages = self._pages_for(sequence.cached)
            self.view.num_computed[slot] = min(sequence.cached, num_tokens - 1)
            self._show_running()
            self._scheduler.dequeue(slot)

    def _compute(self, sequence: FakeSequence, count: int) -> None:
        view, slot = self.view, sequence.slot
        # A cached prefix may leave fewer tokens than were granted.
        count = min(count, int(view.num_tokens[slot] - view.num_computed[slot]))
        sequence.computed += count
        view.num_computed[slot] += count
        sequence.pages = max(sequence.pages, self._pages_for(int(view.num_computed[slot])))
        # The last token was computed, and its logits give the next one.
        if view.num_computed[slot] == view.num_tokens[slot]:
            view.num_tokens[slot] += 1
            if view.num_tokens[slot] == sequence.length:
                self.finished.append(sequence)
                self._remove(sequence)
