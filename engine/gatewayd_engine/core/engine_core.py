"""The engine's heart: one step after the other, from a plan to tokens.

It knows token ids and no text, sequences and no connections. ``step`` reads as what happens:
plan, find pages, gather, run, commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from gatewayd_engine.core.hot_swap import Swaps
from gatewayd_engine.core.lifecycle import SequenceLifecycle
from gatewayd_engine.core.operator_actions import Operating
from gatewayd_engine.core.prompt_compaction import Compactor
from gatewayd_engine.core.step_completion import NO_STATS, Landing
from gatewayd_engine.core.telemetry.engine_seconds import EndedSequence, Spending
from gatewayd_engine.core.telemetry.inspection import Inspection
from gatewayd_engine.core.telemetry.prefix_tree import Browsing
from gatewayd_engine.core.telemetry.step_counts import StepCounts
from gatewayd_engine.core.telemetry.time_attribution import Attribution
from gatewayd_engine.kv.compacted_prefix import only_pages
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.inspect_messages import Inspect, Looked, Looking
from gatewayd_engine.process.log_context import NOBODY, Names
from gatewayd_engine.process.machine_usage import Meter
from gatewayd_engine.process.messages import (
    ERROR,
    Finished,
    PinPrefix,
    StepOutput,
    Submit,
    TenantQuota,
)
from gatewayd_engine.process.plugin_faults import RequestRejected, blame
from gatewayd_engine.runner.cpu import StepRunner
from gatewayd_engine.scheduling.placement import Placement
from gatewayd_engine.scheduling.plan_check import IdleLimit, check
from gatewayd_engine.scheduling.request_check import check_submission, make_sequences
from gatewayd_engine.scheduling.tenant_quotas import TenantBounds, has_begun
from gatewayd_engine.speculation.proposer import Speculation
from gatewayd_engine.state.in_flight import InFlight, InFlightSteps, take_off
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.state.step_batch import StepBatch, gather
from gatewayd_engine.strategies.active import Strategies
from gatewayd_engine.strategies.recovery import launch_apart
from gatewayd_hooks.guiding import GuideSpec
from gatewayd_hooks.scheduling import Plan
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger(__name__)
_FIRST_SLOTS = 256


class EngineCore:
    """Continuous batching over one model.

    Args:
        make_runner: builds the runner for the rows and processors of this core.
        pool: the KV pool.
        strategies: opened; closed by whoever made them.
        max_running: rows of the batch.
        max_batch_tokens: budget of a step.
        max_model_len: tokens a sequence may reach.
        vocab_size: for checking token ids.
        eos_token_ids: end tokens of the model.
        draw_seed: gives a seed to requests that bring none.
        meter: knows what the engine takes of its machine.

    Attributes:
        strategies: what decides now.
        swaps: changes what decides, between two steps.
        operating: what an operator does to single sequences and pages.
    """

    def __init__(
        self,
        make_runner: Callable[[RunningBatch, Strategies], StepRunner],
        pool: KvPool,
        strategies: Strategies,
        *,
        max_running: int,
        max_batch_tokens: int,
        max_model_len: int,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        draw_seed: Callable[[], int],
        meter: Meter,
    ) -> None:
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._draw_seed = draw_seed
        self.strategies = strategies
        self._rows = RunningBatch(max_running, max_model_len, pool.page_size)
        self._queue = Queue(
            _FIRST_SLOTS, max_batch_tokens, max_running, pool.page_size, self._uncached
        )
        self._pages = Pages(pool.num_pages, strategies.plan)
        self._placement = Placement(self._queue, self._rows, pool, self._pages, strategies)
        self._bounds = TenantBounds(self._queue, self._pages)
        self._lives = SequenceLifecycle(self._queue, self._placement, strategies)
        self._recovery = self._lives.recovery
        self.swaps = Swaps(strategies, self._placement, self._recovery, self._queue)
        self._runner = make_runner(self._rows, strategies)
        self._speculation = Speculation(
            self._queue,
            self._rows,
            self._placement,
            strategies,
            vocab_size,
            self._runner,
        )
        self._spending = Spending(self._queue)
        self._compactor = Compactor(
            self._queue, self._placement.shortening, strategies, self._runner, pool.page_size
        )
        self._landing = Landing(
            self._queue,
            self._rows,
            self._pages,
            self._placement,
            self._lives,
            self._speculation,
            self._spending,
            self._compactor,
            np.array(eos_token_ids, np.int32),
        )
        self._attribution = Attribution(self._queue, self._placement.held, strategies.ledger)
        self.operating = Operating(
            self._queue,
            self._pages,
            self._placement,
            strategies,
            self._lives,
            self._attribution,
        )
        self._inspection = Inspection(self._queue, self._pages, self._placement, strategies, meter)
        self._browsing = Browsing(
            self._queue, self._pages, self._placement.prefixes, self._inspection
        )
        self._tally = StepCounts()
        self._patience = IdleLimit()
        self._flight: InFlightSteps | None = None

    def _uncached(self, slot: int) -> int:
        return self._placement.prefixes.uncached(slot)

    # Requests in and out

    def submit(self, message: Submit) -> None:
        """Queue a request.

        Raises:
            Refused: its numbers do not fit this model.
        """
        prompt = check_submission(message, self._vocab_size, self._max_model_len)
        self._bounds.forget_idle()
        self._recovery.fenced(partial(self._bounds.tighten, self._lives.knows), redo=True)
        message = self._bounds.fitted(message, len(prompt))
        if any(map(self._lives.knows, message.sequences)):
            raise RequestRejected("a sequence id is in use")
        seed = message.params.seed
        seed = self._draw_seed() if seed is None else seed
        sequences = make_sequences(message, prompt, seed, compacts=self._compactor.is_on)
        guide = message.params.guide
        if guide is not None:
            behind = message.params.guide_behind
            spec = GuideSpec(*guide)  # type: ignore[arg-type]
            grammar = self.strategies.guides.request(spec, behind, message.tenant)
            for sequence in sequences:
                sequence.grammar = grammar
        if not self.has_work:
            self._patience.restart()
        self._lives.begin(sequences, front=message.has_returned)
        if message.is_held:
            self.operating.hold(message.sequences)

    def bound(self, quotas: list[TenantQuota]) -> list[Finished]:
        """Bound what tenants may hold of the KV cache, from now on.

        Returns:
            Those that have ended; among them who waited and could never run within the bounds.
        """
        self._recovery.fenced(partial(self._bounds.set, quotas), redo=True)
        while over := [found for one in self._queue if (found := self._refused(one))]:
            for sequence, refusal in over:
                error = refusal.code, str(refusal)
                self._lives.finish(sequence, ERROR, error=error)
        return self._lives.take_finished()

    def _refused(self, sequence: Sequence) -> tuple[Sequence, RequestRejected] | None:
        if has_begun(sequence):
            return None
        try:
            self._bounds.check(sequence.tenant, sequence.limit)
        except RequestRejected as refusal:
            return sequence, refusal
        return None

    def abort(self, sequence_ids: list[int]) -> None:
        """Forget sequences; unknown ids are ignored.

        Their pages are free when this returns, or when the step that is being computed has landed.
        """
        for sequence_id in sequence_ids:
            if self._queue.find(sequence_id) is None:
                self._spending.unknown(sequence_id)
            self._lives.forget(sequence_id)

    def refuse(self, sequence_ids: list[int]) -> None:
        """Note that sequences end which were never taken in; those that are known go on."""
        for sequence_id in sequence_ids:
            if not self._lives.knows(sequence_id):
                self._spending.unknown(sequence_id)

    def release(self, sequence_ids: list[int]) -> None:
        """Let sequences go on that an operator held; others are ignored."""
        if not self.has_work:
            self._patience.restart()
        self.operating.release(sequence_ids)

    @property
    def has_ended(self) -> bool:
        """Whether anybody has ended since ``take_ended`` or ``step`` was called."""
        return self._spending.has_news

    def take_ended(self) -> EndedSequence:
        """Who has ended since then, and what they took of the engine's time."""
        return self._spending.take_ended()

    def save(self, seconds: float) -> None:
        """Let a later engine find what this one has cached; it computes nothing afterwards.

        Args:
            seconds: that it may take.
        """
        if self._flight is not None:
            # What it computes is to be found, too, and it holds pages until it has landed.
            self._landing.land_last(self._flight)
            self._flight = None
        while len(self._queue):
            self._lives.forget(next(iter(self._queue)).id)
        try:
            self._placement.outside.save(seconds, partial(self._recovery.fenced, redo=True))
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything, and it is the end
            _log.warning("KV cache not saved to the KV tiers: %r", error)

    def pin(self, message: PinPrefix) -> int:
        """Keep what is cached of a prompt, or up to a page, while others can be given up.

        Returns:
            Tokens that are pinned now; for a page those up to its end, 0 if it is not cached.

        Raises:
            Refused: the eviction knows no pins, or there is no prefix cache.
        """
        pins, seconds = self._placement.pins, message.seconds
        if message.page is not None:
            pin = partial(pins.pin_page, message.page, seconds)
        else:
            prompt = np.frombuffer(message.prompt, np.int32)
            pin = partial(pins.pin, prompt, message.salt, seconds)
        pinned = self._recovery.fenced(pin, redo=True)
        return 0 if pinned is None else pinned

    def inspect(self, message: Looking) -> Looked:
        """Say how all sequences and pages are now, or which pages go on from one."""

        def look() -> Looked:
            if isinstance(message, Inspect):
                return self._inspection.look(message.number)
            return self._browsing.look(message)

        found = self._recovery.fenced(look, redo=True)
        if found is None:
            raise RuntimeError("nothing was looked at")
        return found

    # Steps

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything; there is nothing to do for those that are held."""
        return len(self._queue) > len(self._queue.parked) or self._flight is not None

    @property
    def is_computing(self) -> bool:
        """Whether a step has been launched that has not landed."""
        return self._flight is not None

    @property
    def stats(self) -> EngineStats:
        """The state now."""
        placement, queue, pages = self._placement, self._queue, self._pages
        tally, speculation = self._tally, self._speculation
        return EngineStats(
            step=tally.steps,
            num_running=len(queue.running),
            num_waiting=len(queue.waiting) + len(queue.parked) + self._lives.num_deferred,
            free_pages=pages.num_free,
            cached_pages=pages.num_cached,
            held_pages=pages.num_held,
            preemptions=placement.preemption.count,
            prefix_queries=placement.prefixes.queries,
            prefix_hits=placement.prefixes.hits,
            computed_tokens=tally.tokens,
            step_tokens=tally.last_tokens,
            step_seconds=tally.last_seconds,
            faults=self.strategies.num_faults,
            num_deferred=self._lives.num_deferred,
            step_sizes=list(tally.sizes),
            num_drafts=speculation.num_drafts,
            draft_tokens=speculation.drafted,
            accepted_tokens=speculation.accepted,
            accepted_at=list(speculation.accepted_at),
            swaps=placement.outside.swaps,
            tier_hits=dict(placement.outside.hits),
            num_held=len(queue.parked),
            busy_seconds=self._spending.seconds,
            evictions=pages.evictions,
            compactions=placement.shortening.count,
            compacted_pages=placement.shortening.saved_pages,
        )

    def check(self) -> None:
        """Verify the page accounts against what the sequences hold.

        Raises:
            PageInvariantError: they do not add up.
        """
        self._pages.check(
            held
            for sequence in self._queue
            for held in (only_pages(sequence.pages), sequence.inherited)
        )

    def step(self) -> StepOutput:
        """Launch a step, and say what came of the one that has landed.

        Where the runner overlaps, that is the one before: the device computes while the next step
        is planned. Otherwise it is the same one.
        """
        began = time.perf_counter()
        self._recovery.retry_strategies()
        before = self._flight
        if before is None or self._may_overlap():
            batch = self._recovery.fenced(self._next_batch, redo=True)
            is_none = batch is None or not len(batch)
            self._flight = None if batch is None or is_none else self._launch(batch, began)
            if before is None and not self._may_overlap():
                before, self._flight = self._flight, None
        else:
            self._flight = None
        preempted = self._placement.preemption.take_preempted()
        told = self._attribution.tell(None if before is None else before.batch, preempted)
        output, num_tokens = StepOutput(stats=NO_STATS), 0
        if before is not None:
            num_tokens = len(before.batch.ids)
            output = self._landing.land(before, began, is_last=self._flight is None)
        self._tally.add(num_tokens, time.perf_counter() - began)
        if num_tokens and self._placement.outside.learns:
            self._placement.outside.computed(num_tokens, time.perf_counter() - began)
        return msgspec.structs.replace(
            output,
            stats=self.stats,
            admitted=self._placement.take_admitted(),
            preempted=preempted + self._placement.preemption.take_preempted(),
            finished=self._lives.take_finished(),
            **told._asdict(),
            **self.take_ended()._asdict(),
        )

    def _may_overlap(self) -> bool:
        """Whether a step may be planned before the one before it has landed.

        Not with drafts, which guess from tokens that are known; nor where prompts become shorter,
        before anything follows them; nor while a sequence may have to give way, whose pages would
        still be written to.
        """
        return (
            self._runner.overlaps
            and not self._speculation.is_on
            and not self._compactor.is_on
            and not self._placement.growth.is_tight
        )

    def _next_batch(self) -> StepBatch | None:
        queue, view = self._queue, self._queue.view
        try:
            self.operating.settle()
        except InFlight:
            return None
        if len(queue.parked) == len(queue):
            return None
        self._placement.held.review()
        view.free_pages = self._pages.num_available
        view.now = time.monotonic()
        with blame(Kind.SCHEDULER):
            plan: Plan = self.strategies.plan.schedule(view)
            check(plan, queue)
        try:
            slots, counts = self._placement.take(plan)
        except InFlight:
            return None
        self._attribution.planned(int(counts.sum()))
        waits = self._placement.held.any_for_others or self._flight is not None
        self._patience.note(is_idle=not len(slots) and not waits)
        if not len(slots):
            return None
        drafts = self._recovery.fenced(partial(self._speculation.draft, slots, counts), redo=True)
        return gather(
            self._rows,
            slots,
            queue.row[slots],
            queue.ids[slots],
            view.num_computed[slots],
            counts,
            view.num_tokens[slots],
            drafts,
            None if self._flight is None else queue.placeholders[slots],
            self._runner.reads_tables,
        )

    def _names_of(self, sequence_id: int) -> Names:
        sequence = self._queue.find(sequence_id)
        return NOBODY if sequence is None else sequence.names

    def _launch(self, batch: StepBatch, began: float) -> InFlightSteps:
        launched = launch_apart(self._runner.launch, batch, self._names_of)
        self._placement.outside.settle()
        take_off(self._queue, batch)
        self._pages.defers = True
        return InFlightSteps(batch, launched, began)
