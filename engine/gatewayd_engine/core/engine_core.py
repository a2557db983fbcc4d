"""Engine core: schedules, runs and commits one step after another.

It handles token ids, not text, and sequences, not connections. A step is: plan, allocate pages,
gather the batch, run, commit the sampled tokens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from gatewayd_engine.core.hot_swap import HotSwaps
from gatewayd_engine.core.lifecycle import SequenceLifecycle
from gatewayd_engine.core.operator_actions import OperatorActions
from gatewayd_engine.core.prompt_compaction import Compactor
from gatewayd_engine.core.step_completion import NO_STATS, StepCompletion
from gatewayd_engine.core.step_planning import StepPlanning
from gatewayd_engine.core.telemetry.engine_seconds import EndedSequence, EngineTimeAccounting
from gatewayd_engine.core.telemetry.inspection import Inspection
from gatewayd_engine.core.telemetry.prefix_tree import PrefixTreeBrowser
from gatewayd_engine.core.telemetry.step_counts import StepCounts
from gatewayd_engine.core.telemetry.time_attribution import TimeAttribution
from gatewayd_engine.kv.compacted_prefix import only_pages
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.inspect_messages import Inspect, Looked, Looking
from gatewayd_engine.process.log_context import NO_NAMES, Names
from gatewayd_engine.process.machine_usage import UsageMeter
from gatewayd_engine.process.messages import (
    ERROR,
    Finished,
    PinPrefix,
    StepOutput,
    Submit,
    TenantQuota,
)
from gatewayd_engine.process.plugin_faults import RequestRejected
from gatewayd_engine.runner.step_runner import StepRunner
from gatewayd_engine.scheduling.placement import Placement
from gatewayd_engine.scheduling.request_check import check_submission, make_sequences
from gatewayd_engine.scheduling.tenant_quotas import TenantQuotas, has_started
from gatewayd_engine.speculation.proposer import Speculation
from gatewayd_engine.state.in_flight import InFlightSteps, mark_launched
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.strategies.active import Strategies
from gatewayd_engine.strategies.recovery import launch_isolating
from gatewayd_hooks.guiding import GuideSpec

_log = logging.getLogger(__name__)
# Initial capacity of the queue, which doubles when it is full; `EngineResources.slots` announces
# the same number to strategies.
_FIRST_SLOTS = 256


class EngineCore:
    """Continuous batching over one model.

    Args:
        make_runner: builds the runner for the rows and processors of this core.
        pool: the KV pool.
        strategies: opened strategies; the caller closes them.
        max_running: rows of the batch.
        max_batch_tokens: token budget of a step.
        max_model_len: tokens a sequence may reach.
        vocab_size: upper bound for checking token ids.
        eos_token_ids: end-of-sequence tokens of the model.
        draw_seed: returns a seed for requests without one.
        meter: resource usage of the engine process.

    Attributes:
        strategies: the active strategies.
        swaps: hot swap of strategies between two steps.
        operator: operator actions on single sequences and pages.
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
        meter: UsageMeter,
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
        self._quotas = TenantQuotas(self._queue, self._pages)
        self._lifecycle = SequenceLifecycle(self._queue, self._placement, strategies)
        self._recovery = self._lifecycle.recovery
        self.swaps = HotSwaps(strategies, self._placement, self._recovery, self._queue)
        self._runner = make_runner(self._rows, strategies)
        self._speculation = Speculation(
            self._queue,
            self._rows,
            self._placement,
            strategies,
            vocab_size,
            self._runner,
        )
        self._engine_time = EngineTimeAccounting(self._queue)
        self._compactor = Compactor(
            self._queue, self._placement.shortening, strategies, self._runner, pool.page_size
        )
        self._completion = StepCompletion(
            self._queue,
            self._rows,
            self._pages,
            self._placement,
            self._lifecycle,
            self._speculation,
            self._engine_time,
            self._compactor,
            np.array(eos_token_ids, np.int32),
        )
        self._attribution = TimeAttribution(
            self._queue, self._placement.deferral, strategies.plugin_times
        )
        self.operator = OperatorActions(
            self._queue,
            self._pages,
            self._placement,
            strategies,
            self._lifecycle,
            self._attribution,
        )
        self._inspection = Inspection(self._queue, self._pages, self._placement, strategies, meter)
        self._prefix_tree = PrefixTreeBrowser(
            self._queue, self._pages, self._placement.prefixes, self._inspection
        )
        self._step_counts = StepCounts()
        self._planning = StepPlanning(
            self._queue,
            self._rows,
            self._pages,
            self._placement,
            strategies,
            self._lifecycle,
            self._speculation,
            self.operator,
            self._attribution,
            self._runner.reads_tables,
        )
        self._flight: InFlightSteps | None = None

    def _uncached(self, slot: int) -> int:
        # Looked up late: the queue view needs this callback before there is a placement.
        return self._placement.prefixes.uncached(slot)

    # Requests in and out

    def submit(self, message: Submit) -> None:
        """Queue a request.

        Raises:
            RequestRejected: the request does not fit this model or its tenant's quota.
        """
        prompt = check_submission(message, self._vocab_size, self._max_model_len)
        self._quotas.release_idle()
        # Fenced, because changed quotas return protected pages to the eviction strategy.
        self._recovery.fenced(partial(self._quotas.tighten, self._lifecycle.knows), redo=True)
        message = self._quotas.clamp_to_quota(message, len(prompt))
        if any(map(self._lifecycle.knows, message.sequences)):
            raise RequestRejected("a sequence id is in use")
        seed = message.params.seed
        seed = self._draw_seed() if seed is None else seed
        sequences = make_sequences(message, prompt, seed, compacts=self._compactor.is_on)
        guide = message.params.guide
        if guide is not None:
            behind = message.params.guide_behind
            spec = GuideSpec(*guide)  # type: ignore[arg-type]
            # One compilation for all choices; each starts its own matcher when it is admitted.
            grammar = self.strategies.guides.request(spec, behind, message.tenant)
            for sequence in sequences:
                sequence.grammar = grammar
        # The time limit of a scheduler that plans nothing must not include the time without work.
        if not self.has_work:
            self._planning.idle_limit.restart()
        self._lifecycle.submit(sequences, front=message.has_returned)
        # After submission, because only live sequences can be paused; none has been planned yet.
        if message.is_held:
            self.operator.pause_sequences(message.sequences)

    def set_quotas(self, quotas: list[TenantQuota]) -> list[Finished]:
        """Set the KV cache quotas of tenants.

        Returns:
            Sequences that have ended, including waiting ones that could never run within the
            quotas.
        """
        self._recovery.fenced(partial(self._quotas.set, quotas), redo=True)
        # Repeated, because the forks of a refused leader enter the queue in its place.
        while over := [found for one in self._queue if (found := self._refused(one))]:
            for sequence, refusal in over:
                error = refusal.code, str(refusal)
                self._lifecycle.finish(sequence, ERROR, error=error)
        return self._lifecycle.drain_finished()

    def _refused(self, sequence: Sequence) -> tuple[Sequence, RequestRejected] | None:
        if has_started(sequence):
            return None
        try:
            self._quotas.check(sequence.tenant, sequence.limit)
        except RequestRejected as refusal:
            return sequence, refusal
        return None

    def abort(self, sequence_ids: list[int]) -> None:
        """Abort sequences; unknown ids are ignored.

        Their pages are free on return, or once the step that computes them has completed.
        """
        for sequence_id in sequence_ids:
            # Forks that wait for a leader, and ended sequences: the gateway holds a request's
            # limits until each of its sequences has been reported as ended (ADR 0048).
            if self._queue.find(sequence_id) is None:
                self._engine_time.record_unknown(sequence_id)
            self._lifecycle.cancel(sequence_id)

    def record_refused(self, sequence_ids: list[int]) -> None:
        """Record the end of sequences that were rejected at submission; known ones continue."""
        for sequence_id in sequence_ids:
            if not self._lifecycle.knows(sequence_id):
                self._engine_time.record_unknown(sequence_id)

    def resume(self, sequence_ids: list[int]) -> None:
        """Resume sequences that an operator paused; other ids are ignored."""
        if not self.has_work:
            self._planning.idle_limit.restart()
        self.operator.resume_sequences(sequence_ids)

    @property
    def has_ended(self) -> bool:
        """Whether sequences have ended since the last call of ``drain_ended`` or ``step``."""
        return self._engine_time.has_ended

    def drain_ended(self) -> EndedSequence:
        """Return the sequences that ended since the last call, with their engine time."""
        return self._engine_time.drain_ended()

    def save(self, seconds: float) -> None:
        """Save the KV cache to the KV tiers for a later engine; this one computes nothing more.

        Args:
            seconds: time limit.
        """
        if self._flight is not None:
            # Its results are to be saved as well, and it holds pages until it has completed.
            self._completion.complete_last(self._flight)
            self._flight = None
        # Not a loop over the queue: cancelling a leader enqueues its forks.
        while len(self._queue):
            self._lifecycle.cancel(next(iter(self._queue)).id)
        try:
            self._placement.offload.save(seconds, partial(self._recovery.fenced, redo=True))
        except Exception as error:  # noqa: BLE001 - any plugin error; shutdown continues
            _log.warning("KV cache not saved to the KV tiers: %r", error)

    def pin(self, message: PinPrefix) -> int:
        """Pin the cached pages of a prompt, or those up to a page, against eviction.

        Returns:
            Tokens that are pinned now; for a page those up to its end, 0 if it is not cached.

        Raises:
            RequestRejected: the eviction strategy supports no pins, or there is no prefix cache.
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
        """Return a snapshot of all sequences and pages, or the children of a cached page."""

        def look() -> Looked:
            if isinstance(message, Inspect):
                return self._inspection.look(message.number)
            return self._prefix_tree.look(message)

        found = self._recovery.fenced(look, redo=True)
        if found is None:
            raise RuntimeError("inspection failed because of a strategy fault")
        return found

    # Steps

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything; held sequences do not count."""
        return len(self._queue) > len(self._queue.paused) or self._flight is not None

    @property
    def is_computing(self) -> bool:
        """Whether a step has been launched that has not completed."""
        return self._flight is not None

    @property
    def stats(self) -> EngineStats:
        """Current statistics."""
        placement, queue, pages = self._placement, self._queue, self._pages
        counts, speculation = self._step_counts, self._speculation
        # Once: the eviction strategy counts them.
        free, cached = pages.num_free, pages.num_cached
        return EngineStats(
            step=counts.steps,
            num_running=len(queue.running),
            num_waiting=len(queue.waiting) + len(queue.paused) + self._lifecycle.num_deferred,
            free_pages=free,
            cached_pages=cached,
            held_pages=pages.num_pages - free - cached,
            preemptions=placement.preemption.count,
            prefix_queries=placement.prefixes.queries,
            prefix_hits=placement.prefixes.hits,
            computed_tokens=counts.tokens,
            step_tokens=counts.last_tokens,
            step_seconds=counts.last_seconds,
            faults=self.strategies.num_faults,
            num_deferred=self._lifecycle.num_deferred,
            step_sizes=list(counts.sizes),
            num_drafts=speculation.num_drafts,
            draft_tokens=speculation.drafted,
            accepted_tokens=speculation.accepted,
            accepted_at=list(speculation.accepted_at),
            swaps=placement.offload.swaps,
            tier_hits=dict(placement.offload.hits),
            num_held=len(queue.paused),
            busy_seconds=self._engine_time.seconds,
            evictions=pages.evictions,
            compactions=placement.shortening.count,
            compacted_pages=placement.shortening.saved_pages,
        )

    def check(self) -> None:
        """Verify reference counts of pages against the pages that sequences hold, and the index.

        Raises:
            PageInvariantError: they do not match, or a page is found behind one that is not cached.
        """
        self._pages.check(
            held
            for sequence in self._queue
            for held in (only_pages(sequence.pages), sequence.inherited)
        )
        self._placement.prefixes.check()

    def step(self) -> StepOutput:
        """Launch a step, and return the output of the one that has completed.

        Where the runner overlaps, that is the previous step: the device computes while the next
        step is planned. Otherwise it is the same one.
        """
        began = time.perf_counter()
        # At a step boundary, so that one plan is carried out with one set of strategies.
        self._recovery.retry_strategies()
        # Plan and launch: at most one other step is in flight meanwhile.
        before = self._flight
        if before is None or self._may_overlap():
            plan = partial(self._planning.next_batch, is_in_flight=before is not None)
            batch = self._recovery.fenced(plan, redo=True)
            is_none = batch is None or not len(batch)
            self._flight = None if batch is None or is_none else self._launch(batch, began)
            # Asked again: where the next step cannot overlap, this one completes at once.
            if before is None and not self._may_overlap():
                before, self._flight = self._flight, None
        else:
            self._flight = None
        # Complete. Time is attributed first, because sequences that end release their slots.
        preempted = self._placement.preemption.drain_preempted()
        time_shares = self._attribution.collect(None if before is None else before.batch, preempted)
        output, num_tokens = StepOutput(stats=NO_STATS), 0
        if before is not None:
            num_tokens = len(before.batch.ids)
            output = self._completion.complete(before, began, is_last=self._flight is None)
        self._step_counts.add(num_tokens, time.perf_counter() - began)
        if num_tokens and self._placement.offload.measures_costs:
            self._placement.offload.record_computed(num_tokens, time.perf_counter() - began)
        # Compaction may have preempted sequences as the step completed: the next one reports why
        # they wait.
        compacted_for = self._placement.preemption.drain_preempted()
        self._attribution.record_preempted(compacted_for)
        # Statistics last, so that they include everything that this step has changed.
        return msgspec.structs.replace(
            output,
            stats=self.stats,
            admitted=self._placement.drain_admitted(),
            preempted=preempted + compacted_for,
            finished=self._lifecycle.drain_finished(),
            **time_shares._asdict(),
            **self.drain_ended()._asdict(),
        )

    def _may_overlap(self) -> bool:
        """Whether the next step may be planned before the current one has completed.

        Not with speculative decoding, which drafts from committed tokens; nor with prompt
        compaction, which must run before anything follows the prompt; nor while a sequence may be
        preempted, whose pages would still be written to.
        """
        return (
            self._runner.overlaps
            and not self._speculation.is_on
            and not self._compactor.is_on
            and not self._placement.growth.may_preempt
        )

    def _names_of(self, sequence_id: int) -> Names:
        sequence = self._queue.find(sequence_id)
        return NO_NAMES if sequence is None else sequence.names

    def _launch(self, batch: StepBatch, began: float) -> InFlightSteps:
        launched = launch_isolating(self._runner.launch, batch, self._names_of)
        # Runs the callbacks of completed transfers, which release the pages of KV tiers.
        self._placement.offload.wait()
        mark_launched(self._queue, batch)
        # Until it completes, the step may write to pages of sequences that end meanwhile.
        self._pages.defers = True
        return InFlightSteps(batch, launched, began)
