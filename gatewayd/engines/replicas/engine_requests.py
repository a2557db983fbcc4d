"""Everything that one engine has been sent and has not ended, and the way of its tokens.

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
from gatewayd.engines.job import EngineJob, SequenceSlot
from gatewayd.engines.prompt_usage import SequenceUsage
from gatewayd.errors import (
    GatewayError,
    InternalError,
    InvalidRequest,
    NumericalError,
    StrategyUnavailable,
)
from gatewayd.tracing.request_trace import about
from gatewayd.tracing.timeline import TokenPace
from gatewayd_engine.process.frames import FrameError
from gatewayd_engine.process.logs import Rarely
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
    """The choices at one engine, by sequence id.

    Args:
        backlog: of all engines.
        abort: makes the engine forget sequences.
        strategy_of: names the strategy that a cause is due to there.

    Attributes:
        pace: of its steps.
        num_waiting: sequences in its queue.
        queued_tokens: prompt tokens of jobs of which it has admitted nothing.
        dropped_tokens: tokens for sequences that are over, or that never were.
    """

    def __init__(
        self,
        backlog: Backlog,
        abort: Callable[[list[int]], None],
        strategy_of: Callable[[int], str] = lambda cause: "",
    ) -> None:
        self._backlog = backlog
        self._abort = abort
        self._choices: dict[int, SequenceSlot] = {}
        self._leaving: dict[int, SequenceSlot] = {}  # cancelled, and not settled yet
        self._rarely = Rarely()
        self.pace = TokenPace(strategy_of)
        self.num_waiting = 0
        self.queued_tokens = 0
        self.dropped_tokens = 0

    def __len__(self) -> int:
        """Sequences that go on."""
        return len(self._choices)

    @property
    def jobs(self) -> list[EngineJob]:
        """Those that go on, in order of arrival."""
        jobs = {choice.job.number: choice.job for choice in self._choices.values()}
        return [jobs[number] for number in sorted(jobs)]

    def add(self, job: EngineJob) -> None:
        """The job was sent to this engine; its choices have their sequence ids."""
        now = time.monotonic()
        for choice in job.choices:
            if not choice.is_over:
                choice.timeline.sent(now, self.pace, follows=choice.index > 0)
                self._choices[choice.sequence] = choice
                choice.is_queued = True
                self.num_waiting += 1
            elif not choice.is_settled:
                self._leaving[choice.sequence] = choice
        self.queued_tokens += job.prompt_len

    def drop(self, choice: SequenceSlot) -> None:
        """The choice is over; no effect if this engine does not have it."""
        if self._choices.pop(choice.sequence, None) is None:
            return
        if not choice.is_settled:
            self._leaving[choice.sequence] = choice
        if choice.is_queued:
            choice.is_queued = False
            self.num_waiting -= 1
        job = choice.job
        if job.is_waiting and job.is_over:
            self.queued_tokens -= job.prompt_len
            self._backlog.leave(job)

    def lose(self) -> list[EngineJob]:
        """Forget everything: the engine is lost.

        Returns:
            The jobs that it had, in order of arrival.
        """
        jobs, now = self.jobs, time.monotonic()
        for choice in self._choices.values():
            choice.is_queued = False
            choice.timeline.lost(now)
        self._choices.clear()
        leaving, self._leaving = self._leaving, {}
        for choice in leaving.values():
            choice.settle()
        self.num_waiting = self.queued_tokens = 0
        return jobs

    def deliver(self, step: StepOutput) -> None:
        """Hand what a step produced to the sinks.

        Raises:
            FrameError: its columns contradict each other; nothing was delivered.
        """
        runs = _token_runs(step) if step.sequences else []
        if any(not 0 <= finished.reason < len(FINISH_REASONS) for finished in step.finished):
            raise FrameError("a sequence finished for a reason that does not exist")
        moves = _moves(step) if step.moved else []
        ended = _ended(step) if step.ended else []
        self.pace.note(step, time.monotonic())
        for sequence, cause, share, _ in moves:
            if choice := self._choices.get(sequence):
                choice.timeline.moved(cause, share)
        for admitted in step.admitted:
            self._admit(admitted)
        for sequence, _, _, reached in moves:
            if reached:
                self._reach(sequence, reached)
        for sequence in step.preempted:
            if choice := self._choices.get(sequence):
                self._call(choice, choice.sink.preempted)
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
        for sequence, took in ended:
            if choice := self._choices.get(sequence) or self._leaving.pop(sequence, None):
                choice.settle(took)
        for finished in step.finished:
            self._finish(finished)

    def _tokens(
        self, runs: list[tuple[int, Sequence[int]]], logprobs: dict[int, list[TokenLogprobs]]
    ) -> None:
        find = self._choices.get
        for sequence, ids in runs:
            choice = find(sequence)
            if choice is None:
                self.dropped_tokens += len(ids)
                continue
            if not choice.is_started:
                choice.is_started = True
                choice.job.begin()
            self._call(choice, choice.sink.tokens, ids, logprobs.get(sequence))

    def _reach(self, sequence: int, tokens: int) -> None:
        """A chunk of a prompt is computed, perhaps of one whose client has left meanwhile."""
        choice = self._choices.get(sequence) or self._leaving.get(sequence)
        if choice is not None and tokens > choice.reached:
            choice.reached = tokens
            if not choice.is_over:
                self._call(choice, choice.sink.computed, tokens)

    def _admit(self, admitted: Admitted) -> None:
        choice = self._choices.get(admitted.sequence)
        if choice is None or not choice.is_queued:
            if gone := self._leaving.get(admitted.sequence):
                gone.admit(admitted.cached_tokens)
            return
        choice.is_queued = False
        self.num_waiting -= 1
        job = choice.job
        if job.is_waiting:
            self.queued_tokens -= job.prompt_len
            self._backlog.admitted(job, admitted.queue_seconds)
        if choice.admit(admitted.cached_tokens):
            self._call(choice, choice.sink.admitted, admitted.cached_tokens, admitted.queue_seconds)

    def _finish(self, finished: Finished) -> None:
        choice = self._choices.get(finished.sequence)
        if choice is None:
            return
        choice.is_over = True
        choice.timeline.stop(time.monotonic())
        # Where steps overlap, the one behind its last may compute it, and what it took comes then.
        self.drop(choice)
        if finished.reason == ERROR:
            with about(choice.job.trail):
                error = self._error(finished, choice.job.request)
            self._call(choice, choice.sink.failed, error)
        else:
            reason = FINISH_REASONS[finished.reason]
            self._call(choice, choice.sink.finished, reason, finished.stop_token)

    def _error(self, finished: Finished, request: EngineRequest) -> GatewayError:
        """The client's view of an engine's error; what is unknown is logged, not shown."""
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
            if self._rarely.may(message):
                _log.error("refusing requests since request %s: %s", request.request_id, message)
            return StrategyUnavailable(message)
        _log.error("request %s failed in the engine: %s: %s", request.request_id, code, message)
        return InternalError("the engine could not finish this request")

    def _call(self, choice: SequenceSlot, method: Callable[..., None], *args: object) -> None:
        if not choice.call(method, *args) and not choice.is_over:
            choice.fail(InternalError("internal error"))
            self.drop(choice)
            self._abort([choice.sequence])


def _token_runs(step: StepOutput) -> list[tuple[int, Sequence[int]]]:
    """The tokens of each sequence that got some.

    Raises:
        FrameError: the columns do not fit together.
    """
    try:
        sequences = memoryview(step.sequences).cast("q").tolist()
        tokens = memoryview(step.tokens).cast("i").tolist()
        pairs = list(zip(sequences, tokens, strict=True))
    except (TypeError, ValueError) as error:
        raise FrameError(f"the columns of a step do not fit together: {error}") from error
    if len(set(sequences)) == len(sequences):
        return [(sequence, (token,)) for sequence, token in pairs]
    # Where drafts were kept a sequence got several, one after the other.
    return [(of, [token for _, token in run]) for of, run in groupby(pairs, itemgetter(0))]


def _moves(step: StepOutput) -> Sequence[tuple[int, int, float, int]]:
    """Sequences whose time went to something else, what, their share of the step, how far they are.

    Raises:
        FrameError: the columns do not fit together.
    """
    try:
        sequences = memoryview(step.moved).cast("q").tolist()
        shares = memoryview(step.shares).cast("f").tolist()
        if max(step.causes) >= len(Cause):
            raise ValueError("a cause that does not exist")
        reached = memoryview(step.reached).cast("i").tolist()
        return list(zip(sequences, step.causes, shares, reached, strict=True))
    except (TypeError, ValueError) as error:
        raise FrameError(f"the columns of a step do not fit together: {error}") from error


def _ended(step: StepOutput) -> Sequence[tuple[int, SequenceUsage]]:
    """Sequences that have ended, and what each took of the engine.

    Raises:
        FrameError: the columns do not fit together.
    """
    try:
        sequences = memoryview(step.ended).cast("q").tolist()
        seconds = memoryview(step.spent).cast("d").tolist()
        counts = memoryview(step.counts).cast("i").tolist()
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
