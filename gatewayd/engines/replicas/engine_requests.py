"""Requests at one engine, and the delivery of their output to sinks.

``deliver`` runs for every step of every engine: columns become lists once per step, and one
bound method is called per sequence.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter

from gatewayd.engines.api import EngineRequest
from gatewayd.engines.backlog import Backlog
from gatewayd.engines.job import EngineJob, JobChoice
from gatewayd.engines.prompt_usage import SequenceUsage
from gatewayd.errors import (
    GatewayError,
    InternalError,
    InvalidRequest,
    NumericalError,
    StrategyUnavailable,
)
from gatewayd.tracing.request_trace import log_context
from gatewayd.tracing.timeline import StepTimeTotals
from gatewayd_engine.process.frames import FrameError
from gatewayd_engine.process.logs import MessageThrottle
from gatewayd_engine.process.messages import (
    ERROR,
    FINISH_REASONS,
    Admitted,
    Finished,
    StepOutput,
    TokenLogprobs,
)
from gatewayd_engine.process.time_causes import Cause

_log = logging.getLogger(__name__)


class SentRequests:
    """Unfinished choices at one engine, by sequence id.

    Args:
        backlog: backlog of all engines.
        abort: aborts sequences at the engine.
        strategy_of: names the strategy responsible for a cause of waiting.

    Attributes:
        pace: token rate of its steps.
        num_waiting: sequences in its queue.
        queued_tokens: prompt tokens of jobs none of whose choices was admitted.
        dropped_tokens: tokens received for sequences that have ended or are unknown.
    """

    def __init__(
        self,
        backlog: Backlog,
        abort: Callable[[list[int]], None],
        strategy_of: Callable[[int], str] = lambda cause: "",
    ) -> None:
        self._backlog = backlog
        self._abort = abort
        self._choices: dict[int, JobChoice] = {}
        self._leaving: dict[int, JobChoice] = {}  # cancelled, usage not final yet
        self._throttle = MessageThrottle()
        self.pace = StepTimeTotals(strategy_of)
        self.num_waiting = 0
        self.queued_tokens = 0
        self.dropped_tokens = 0

    def __len__(self) -> int:
        """Number of unfinished sequences."""
        return len(self._choices)

    @property
    def jobs(self) -> list[EngineJob]:
        """Unfinished jobs, in order of arrival."""
        jobs = {choice.job.number: choice.job for choice in self._choices.values()}
        return [jobs[number] for number in sorted(jobs)]

    def add(self, job: EngineJob) -> None:
        """Add a job that was sent to this engine; its choices have sequence ids."""
        now = time.monotonic()
        for choice in job.choices:
            if not choice.is_over:
                choice.timeline.sent(now, self.pace, follows=choice.index > 0)
                self._choices[choice.sequence] = choice
                choice.is_queued = True
                self.num_waiting += 1
            elif not choice.is_settled:
                # Cancelled without an engine: aborted right after this, then reported as ended.
                self._leaving[choice.sequence] = choice
        self.queued_tokens += job.prompt_len

    def remove(self, choice: JobChoice) -> None:
        """Remove an ended choice; no effect if this engine does not have it."""
        if self._choices.pop(choice.sequence, None) is None:
            return
        # An engine reports the usage after the last step that computes the sequence.
        if not choice.is_settled:
            self._leaving[choice.sequence] = choice
        if choice.is_queued:
            choice.is_queued = False
            self.num_waiting -= 1
        job = choice.job
        # No choice was admitted: the prompt still counts as queued.
        if job.is_waiting and job.is_over:
            self.queued_tokens -= job.prompt_len
            self._backlog.remove(job)

    def clear_lost(self) -> list[EngineJob]:
        """Remove everything, after the engine was lost.

        Returns:
            The unfinished jobs, in order of arrival.
        """
        jobs, now = self.jobs, time.monotonic()
        for choice in self._choices.values():
            choice.is_queued = False
            choice.timeline.lost(now)
        self._choices.clear()
        # No engine will report their usage.
        leaving, self._leaving = self._leaving, {}
        for choice in leaving.values():
            choice.settle()
        self.num_waiting = self.queued_tokens = 0
        return jobs

    def deliver(self, step: StepOutput) -> None:
        """Deliver the output of a step to the sinks.

        Raises:
            FrameError: its columns are inconsistent; nothing was delivered.
        """
        # All columns are decoded before the first sink is called: an invalid frame ends the engine,
        # and its requests must be retried without any part of it.
        runs = _token_runs(step) if step.sequences else []
        if any(not 0 <= finished.reason < len(FINISH_REASONS) for finished in step.finished):
            raise FrameError("a sequence finished for a reason that does not exist")
        moves = _moves(step) if step.moved else []
        ended = _ended(step) if step.ended else []
        # Before the timelines, which read these totals, and before any sink may end a choice.
        self.pace.record_step(step, time.monotonic())
        for sequence, cause, share, _ in moves:
            if choice := self._choices.get(sequence):
                choice.timeline.on_step(cause, share)
        # Admissions before progress: a sink needs the number of cached tokens first.
        for admitted in step.admitted:
            self._on_admitted(admitted)
        for sequence, _, _, reached in moves:
            if reached:
                self._on_progress(sequence, reached)
        for sequence in step.preempted:
            if choice := self._choices.get(sequence):
                self._call(choice, choice.sink.preempted)
        # Before the tokens: prompt outputs are complete when the first token is delivered.
        for sequence, logprobs in _by_sequence(step.prompt_logprobs).items():
            if choice := self._choices.get(sequence):
                choice.is_scored = True
                self._call(choice, choice.sink.prompt_logprobs, logprobs)
        for pooled in step.pooled:
            if choice := self._choices.get(pooled.sequence):
                choice.is_scored = True
                self._call(choice, choice.sink.pooled, pooled.count, pooled.vector)
        if runs:
            self._tokens(runs, _by_sequence(step.logprobs))
        # Before the ends: the usage of a choice that ends in this step is final already.
        for sequence, took in ended:
            if choice := self._choices.get(sequence) or self._leaving.pop(sequence, None):
                choice.settle(took)
        # Last, as the final tokens of a sequence are in the same message.
        for finished in step.finished:
            self._finish(finished)

    def _tokens(
        self, runs: list[tuple[int, Sequence[int]]], logprobs: dict[int, list[TokenLogprobs]]
    ) -> None:
        find = self._choices.get
        for sequence, ids in runs:
            choice = find(sequence)
            # Cancelled while the engine computed the step.
            if choice is None:
                self.dropped_tokens += len(ids)
                continue
            if not choice.is_started:
                choice.is_started = True
                choice.job.on_first_token()
            self._call(choice, choice.sink.tokens, ids, logprobs.get(sequence))

    def _on_progress(self, sequence: int, tokens: int) -> None:
        """Record the progress of a prompt, perhaps of a cancelled sequence."""
        choice = self._choices.get(sequence) or self._leaving.get(sequence)
        if choice is not None and tokens > choice.reached:
            choice.reached = tokens
            if not choice.is_over:
                self._call(choice, choice.sink.computed, tokens)

    def _on_admitted(self, admitted: Admitted) -> None:
        choice = self._choices.get(admitted.sequence)
        if choice is None or not choice.is_queued:
            # A cancelled sequence may have been admitted; its cached tokens are part of its usage.
            if gone := self._leaving.get(admitted.sequence):
                gone.on_admitted(admitted.cached_tokens)
            return
        choice.is_queued = False
        self.num_waiting -= 1
        job = choice.job
        if job.is_waiting:
            self.queued_tokens -= job.prompt_len
            self._backlog.record_admission(job, admitted.queue_seconds)
        if choice.on_admitted(admitted.cached_tokens):
            self._call(choice, choice.sink.admitted, admitted.cached_tokens, admitted.queue_seconds)

    def _finish(self, finished: Finished) -> None:
        choice = self._choices.get(finished.sequence)
        if choice is None:
            return
        choice.is_over = True
        choice.timeline.stop(time.monotonic())
        # With overlapped steps the following step may still compute it; its usage comes after that.
        self.remove(choice)
        if finished.reason == ERROR:
            # Frames are handled outside the request's task: attach its ids to the log record.
            with log_context(choice.job.trail):
                error = self._error(finished, choice.job.request)
            self._call(choice, choice.sink.failed, error)
        else:
            reason = FINISH_REASONS[finished.reason]
            self._call(choice, choice.sink.finished, reason, finished.stop_token)

    def _error(self, finished: Finished, request: EngineRequest) -> GatewayError:
        """Convert an engine's error for the client; unknown errors are logged, not shown."""
        code, message = finished.error or ("unknown", "")
        if code == "numerical_error":
            return NumericalError(message)
        if code == "invalid_request":
            return InvalidRequest(message)
        if code == "invalid_grammar":
            return InvalidRequest(message, param=request.guide_param, code="invalid_grammar")
        if code == "kv_quota_exceeded":
            return InvalidRequest(message, param="max_tokens", code="kv_quota_exceeded")
        if code == "strategy_error":
            if self._throttle.should_log(message):
                _log.error("refusing requests since request %s: %s", request.request_id, message)
            return StrategyUnavailable(message)
        _log.error("request %s failed in the engine: %s: %s", request.request_id, code, message)
        return InternalError("the engine could not finish this request")

    def _call(self, choice: JobChoice, method: Callable[..., None], *args: object) -> None:
        # A sink may have cancelled the choice before it raised.
        if not choice.call(method, *args) and not choice.is_over:
            choice.fail(InternalError("internal error"))
            self.remove(choice)
            self._abort([choice.sequence])


def _token_runs(step: StepOutput) -> list[tuple[int, Sequence[int]]]:
    """Group the tokens of a step by sequence.

    Raises:
        FrameError: the columns are inconsistent.
    """
    try:
        # `cast` refuses bytes that are not whole elements: TypeError.
        sequences = memoryview(step.sequences).cast("q").tolist()
        tokens = memoryview(step.tokens).cast("i").tolist()
        pairs = list(zip(sequences, tokens, strict=True))
    except (TypeError, ValueError) as error:
        raise FrameError(f"the columns of a step do not fit together: {error}") from error
    # Usually one token for each sequence; nothing to group.
    if len(set(sequences)) == len(sequences):
        return [(sequence, (token,)) for sequence, token in pairs]
    # With accepted draft tokens a sequence has several, in consecutive rows.
    return [(of, [token for _, token in run]) for of, run in groupby(pairs, itemgetter(0))]


def _moves(step: StepOutput) -> Sequence[tuple[int, int, float, int]]:
    """Decode the sequences with a new cause of waiting: id, cause, share of the step, progress.

    Raises:
        FrameError: the columns are inconsistent.
    """
    try:
        sequences = memoryview(step.moved).cast("q").tolist()
        shares = memoryview(step.shares).cast("f").tolist()
        # Bytes as integers; empty ones raise ValueError as well.
        if max(step.causes) >= len(Cause):
            raise ValueError("a cause that does not exist")
        reached = memoryview(step.reached).cast("i").tolist()
        return list(zip(sequences, step.causes, shares, reached, strict=True))
    except (TypeError, ValueError) as error:
        raise FrameError(f"the columns of a step do not fit together: {error}") from error


def _ended(step: StepOutput) -> Sequence[tuple[int, SequenceUsage]]:
    """Decode the ended sequences and their usage.

    Raises:
        FrameError: the columns are inconsistent.
    """
    try:
        sequences = memoryview(step.ended).cast("q").tolist()
        seconds = memoryview(step.spent).cast("d").tolist()
        counts = memoryview(step.counts).cast("i").tolist()
        # `counts` is row-major `[3, k]`.
        some = len(sequences)
        columns = counts[:some], counts[some : 2 * some], counts[2 * some :]
        return [
            (sequence, SequenceUsage(*took))
            for sequence, *took in zip(sequences, seconds, *columns, strict=True)
        ]
    except (TypeError, ValueError) as error:
        raise FrameError(f"the columns of a step do not fit together: {error}") from error


def _by_sequence(logprobs: Sequence[TokenLogprobs]) -> dict[int, list[TokenLogprobs]]:
    groups: dict[int, list[TokenLogprobs]] = {}
    for entry in logprobs:
        groups.setdefault(entry.sequence, []).append(entry)
    return groups
