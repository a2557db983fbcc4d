"""The engine's heart: one step after the other, from a plan to tokens.

It knows token ids and no text, sequences and no connections. ``step`` reads as what happens:
plan, find pages, gather, run, commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.batch import StepBatch, gather
from gatewayd_engine.check import Patience, check
from gatewayd_engine.commit import write_down
from gatewayd_engine.families import Families
from gatewayd_engine.faults import RequestFault, blame
from gatewayd_engine.kv.pages import Pages
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.messages import (
    ERROR,
    LENGTH,
    STOP,
    EngineStats,
    Finished,
    StepOutput,
    Submit,
    TokenLogprobs,
)
from gatewayd_engine.placement import Placement
from gatewayd_engine.queue import Queue
from gatewayd_engine.recovery import Recovery, run_apart
from gatewayd_engine.result import StepResult
from gatewayd_engine.rows import Rows
from gatewayd_engine.runner import Runner
from gatewayd_engine.sequence import Sequence
from gatewayd_engine.speculation import Speculation
from gatewayd_engine.strategies import Strategies
from gatewayd_engine.submission import Refused, check_submission, make_sequences
from gatewayd_engine.swapping import Swaps
from gatewayd_engine.tally import Tally
from gatewayd_hooks.scheduling import Plan
from gatewayd_hooks.strategy import Kind

_FIRST_SLOTS = 256
_NO_STATS = EngineStats()  # until the step is over


class EngineCore:
    """Continuous batching over one model.

    Args:
        make_runner: builds the runner for the rows and processors of this core.
        pool: the KV pool.
        strategies: unopened; opened and closed by the core.
        max_running: rows of the batch.
        max_batch_tokens: budget of a step.
        max_model_len: tokens a sequence may reach.
        vocab_size: for checking token ids.
        eos_token_ids: end tokens of the model.
        draw_seed: gives a seed to requests that bring none.

    Attributes:
        strategies: what decides now.
        swaps: changes what decides, between two steps.
    """

    def __init__(
        self,
        make_runner: Callable[[Rows, Strategies], Runner],
        pool: KvPool,
        strategies: Strategies,
        *,
        max_running: int,
        max_batch_tokens: int,
        max_model_len: int,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        draw_seed: Callable[[], int],
    ) -> None:
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._eos = np.array(eos_token_ids, np.int32)
        self._draw_seed = draw_seed
        self.strategies = strategies
        self._rows = Rows(max_running, max_model_len, pool.page_size)
        self._queue = Queue(
            _FIRST_SLOTS, max_batch_tokens, max_running, pool.page_size, self._uncached
        )
        self._pages = Pages(pool.num_pages, strategies.plan)
        self._placement = Placement(self._queue, self._rows, pool, self._pages, strategies)
        self._recovery = Recovery(strategies, self._placement.rebuild, self._fail)
        self.swaps = Swaps(strategies, self._placement, self._recovery, self._queue)
        self._runner = make_runner(self._rows, strategies)
        self._speculation = Speculation(
            self._queue, self._rows, self._placement, strategies, vocab_size
        )
        self._tally = Tally()
        self._patience = Patience()
        self._finished: list[Finished] = []
        self._families = Families()

    def _uncached(self, slot: int) -> int:
        return self._placement.prefixes.uncached(slot)

    # Requests in and out

    def submit(self, message: Submit) -> None:
        """Queue a request.

        Raises:
            Refused: its numbers do not fit this model.
        """
        prompt = check_submission(message, self._vocab_size, self._max_model_len)
        if any(i in self._families or self._queue.find(i) for i in message.sequences):
            raise Refused("a sequence id is in use")
        seed = message.params.seed
        sequences = make_sequences(message, prompt, self._draw_seed() if seed is None else seed)
        if not self.has_work:
            self._patience.restart()
        parent = self._families.found(sequences)
        self._enqueue(parent, front=message.has_returned)

    def _enqueue(self, sequence: Sequence, *, front: bool) -> None:
        self._recovery.fenced(partial(self._placement.enqueue, sequence, front=front), redo=False)

    def abort(self, sequence_ids: list[int]) -> None:
        """Forget sequences; their pages are free when this returns. Unknown ids are ignored."""
        for sequence_id in sequence_ids:
            self._families.forget(sequence_id)
            sequence = self._queue.find(sequence_id)
            if sequence is not None:
                self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        """Release a sequence; forks that waited for its prompt go on by themselves."""
        heirs = self._families.dissolve(sequence)
        self._recovery.fenced(lambda: self._placement.release(sequence), redo=False)
        if heirs:
            heir = self._families.found(heirs)
            heir.was_counted = sequence.was_counted
            self._enqueue(heir, front=sequence.was_admitted)

    # Steps

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return len(self._queue) > 0

    @property
    def stats(self) -> EngineStats:
        """The state now."""
        placement, queue, pages = self._placement, self._queue, self._pages
        tally, speculation = self._tally, self._speculation
        return EngineStats(
            step=tally.steps,
            num_running=len(queue.running),
            num_waiting=len(queue.waiting) + len(self._families),
            free_pages=pages.num_free,
            cached_pages=pages.num_cached,
            held_pages=pages.num_held,
            preemptions=placement.preemptions,
            prefix_queries=placement.prefixes.queries,
            prefix_hits=placement.prefixes.hits,
            computed_tokens=tally.tokens,
            step_tokens=tally.last_tokens,
            step_seconds=tally.last_seconds,
            faults=self.strategies.num_faults,
            num_deferred=len(self._families),
            step_sizes=list(tally.sizes),
            num_drafts=speculation.num_drafts,
            draft_tokens=speculation.drafted,
            accepted_tokens=speculation.accepted,
            accepted_at=list(speculation.accepted_at),
            swaps=placement.outside.swaps,
            tier_hits=placement.outside.hits,
        )

    def check(self) -> None:
        """Verify the page accounts against what the sequences hold.

        Raises:
            PageInvariantError: they do not add up.
        """
        self._pages.check(
            held for sequence in self._queue for held in (sequence.pages, sequence.inherited)
        )

    def step(self) -> StepOutput:
        """Compute one step and say what came of it."""
        began = time.perf_counter()
        self._recovery.retry_strategies()
        batch = self._recovery.fenced(self._next_batch, redo=True)
        output = StepOutput(stats=_NO_STATS)
        num_tokens = 0
        if batch is not None and len(batch):
            num_tokens = len(batch.ids)
            result = run_apart(self._runner.run, batch)
            self._placement.outside.settle()
            # Before sequences end, whose rows it speaks of.
            self._recovery.fenced(partial(self._speculation.observe, batch, result), redo=False)
            output = self._commit(batch, result)
            self._recovery.fenced(
                lambda: self._speculation.report(batch, result, time.perf_counter() - began),
                redo=False,
            )
        self._tally.add(num_tokens, time.perf_counter() - began)
        if num_tokens and self._placement.outside.learns:
            self._placement.outside.computed(num_tokens, time.perf_counter() - began)
        finished, self._finished = self._finished, []
        return StepOutput(
            stats=self.stats,
            sequences=output.sequences,
            tokens=output.tokens,
            admitted=self._placement.take_admitted(),
            preempted=self._placement.take_preempted(),
            finished=finished,
            logprobs=output.logprobs,
            prompt_logprobs=output.prompt_logprobs,
        )

    def _next_batch(self) -> StepBatch | None:
        queue, view = self._queue, self._queue.view
        view.free_pages = self._pages.num_available
        with blame(Kind.SCHEDULER):
            plan: Plan = self.strategies.plan.schedule(view)
            check(plan, queue)
        slots, counts = self._placement.take(plan)
        self._patience.note(is_idle=not len(slots) and not self._placement.outside.awaited)
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
        )

    def _commit(self, batch: StepBatch, result: StepResult) -> StepOutput:
        """Write down what a batch produced, and end what has reached its end."""
        queue, ids = self._queue, batch.sequences
        tokens = result.tokens
        written = write_down(queue, self._rows, batch, tokens, self._eos)
        slots, row = batch.slots[tokens.lines], batch.rows[tokens.lines]
        for of, end in result.reported:
            self._rows.reported[of] = end
        lost = self.strategies.processors.append(row, written.last)
        failed = {line for line, _, _ in result.failed}
        if failed:
            healthy = ~np.isin(np.arange(len(batch)), list(failed))
            self._publish(batch.slots[healthy])
        else:
            self._publish(batch.slots)
        is_lost = np.zeros(len(slots), np.bool_)
        is_lost[list(lost)] = True
        for i in np.flatnonzero(written.over & ~is_lost).tolist():
            stop = int(written.stop[i])
            if stop >= 0:
                self._finish(queue[int(slots[i])], STOP, stop_token=stop)
            else:
                self._finish(queue[int(slots[i])], LENGTH)
        self._fork(slots[written.begins & ~is_lost])
        uncounted = [(int(tokens.lines[i]), "strategy_error", lost[i]) for i in lost]
        for line, code, sentence in result.failed + uncounted:
            sequence = queue[int(batch.slots[line])]
            self._placement.scrub(sequence)
            self._finish(sequence, ERROR, error=(code, sentence))
        told = dict(zip(tokens.lines.tolist(), written.told.tolist(), strict=True))
        return StepOutput(
            stats=_NO_STATS,
            sequences=np.repeat(ids[tokens.lines], written.told).tobytes(),
            tokens=tokens.ids[np.arange(tokens.ids.shape[1]) < written.told[:, None]].tobytes(),
            logprobs=_named(_first(result.logprobs, told), ids),
            prompt_logprobs=_named(result.prompt_logprobs, ids),
        )

    def _publish(self, slots: NDArray[np.int32]) -> None:
        self._recovery.fenced(lambda: self._placement.prefixes.publish(slots), redo=False)

    def _finish(
        self,
        sequence: Sequence,
        reason: int,
        *,
        stop_token: int | None = None,
        error: tuple[str, str] | None = None,
    ) -> None:
        self._finished.append(Finished(sequence.id, reason, stop_token, error))
        if reason != ERROR:
            self._fork(np.array([sequence.slot], np.int32))
        self._end(sequence)

    def _fail(self, fault: RequestFault) -> None:
        self._finish(self._queue[fault.slot], ERROR, error=(fault.code, fault.sentence))

    def _fork(self, slots: NDArray[np.int32]) -> None:
        """Let the forks of sequences whose prompt is computed go their own way."""
        for slot in slots.tolist():
            parent = self._queue[slot]
            for child in self._families.dissolve(parent):
                self._recovery.fenced(partial(self._placement.fork, parent, child), redo=False)


def _first(reports: list[TokenLogprobs], told: dict[int, int]) -> list[TokenLogprobs]:
    """Those of tokens that clients see: so many of each line."""
    left = dict(told)
    kept = []
    for report in reports:
        if left.get(report.sequence, 0):
            left[report.sequence] -= 1
            kept.append(report)
    return kept


def _named(reports: list[TokenLogprobs], ids: NDArray[np.int64]) -> list[TokenLogprobs]:
    """Replace lines of the batch by the gateway's sequence ids."""
    return [msgspec.structs.replace(r, sequence=int(ids[r.sequence])) for r in reports]
