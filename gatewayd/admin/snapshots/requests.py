"""Request rows of a snapshot: waiting requests, and running choices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gatewayd.engines.job import EngineJob, JobChoice
from gatewayd.engines.request_handle import JobHandle
from gatewayd.pipeline.generation import Generation
from gatewayd.tracing.causes import AT_ENGINE, CAUSES
from gatewayd.tracing.timeline import NO_ENGINE, SENT
from gatewayd.wire.snapshot import MOST_ROWS, RunningView, WaitingView
from gatewayd_engine.process.time_causes import Cause
from gatewayd_hooks.scheduling import Priority

_WITHOUT_ROW = frozenset((Cause.PREEMPTED, Cause.HELD, NO_ENGINE, SENT))
"""Causes of waiting during which an admitted sequence has no batch row."""
_PHASES = {Cause.PREFILL: "prefill", Cause.RECOMPUTE: "prefill", Cause.DECODE: "decode"}
_HELD_BACK = "held"


class SequenceReport(NamedTuple):
    """An engine's report on a sequence.

    Attributes:
        computed: computed tokens.
        pages: held KV pages.
        cached: cached prompt tokens of a waiting one; None if unknown.
        drafted: draft tokens.
        accepted: accepted draft tokens.
    """

    computed: int
    pages: int
    cached: int | None
    drafted: int
    accepted: int


NOTHING = SequenceReport(0, 0, None, 0, 0)
"""Report of a sequence that no engine has reported."""


class RequestRows:
    """All requests at one instant.

    Attributes:
        waiting, running: the first ``MOST_ROWS``.
        more_waiting, more_running: beyond those.
        waits, runs: number of waiting or running requests by tenant.

    Args:
        live: requests in order of arrival.
        looks: reports of engines, by sequence id.
        now: present time, by the clock of requests.
    """

    def __init__(
        self, live: Iterable[Generation], looks: Mapping[int, SequenceReport], now: float
    ) -> None:
        self.waiting: list[WaitingView] = []
        self.running: list[RunningView] = []
        self.more_waiting = self.more_running = 0
        self.waits: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self._looks = looks
        self._now = now
        for generation in live:
            self._add(generation)

    def _add(self, generation: Generation) -> None:
        jobs = [handle.job for handle in generation.handles if isinstance(handle, JobHandle)]
        first: tuple[EngineJob, JobChoice] | None = None
        runs = False
        for prompt, job in enumerate(jobs):
            for choice in job.choices:
                if choice.is_over:
                    continue
                if has_row(job, choice):
                    runs = True
                    self._run(generation, prompt, job, choice)
                elif first is None:
                    first = job, choice
                    if job.is_waiting:
                        break  # then its other choices do not run either
        tenant = generation.work.principal.tenant
        # With one running choice the whole request counts as running.
        if runs:
            self.runs[tenant] += 1
        elif first is not None:
            self.waits[tenant] += 1
            if len(self.waiting) < MOST_ROWS:
                self.waiting.append(self._waiting(generation, jobs, *first))
            else:
                self.more_waiting += 1

    def _run(self, generation: Generation, prompt: int, job: EngineJob, choice: JobChoice) -> None:
        if len(self.running) < MOST_ROWS:
            self.running.append(self._running(generation, prompt, job, choice))
        else:
            self.more_running += 1

    def _waiting(
        self, generation: Generation, jobs: list[EngineJob], job: EngineJob, choice: JobChoice
    ) -> WaitingView:
        request, cause = job.request, AT_ENGINE[choice.timeline.cause]
        cached = [self._looks.get(one.choices[0].sequence, NOTHING).cached for one in jobs]
        known = [count for count in cached if count is not None]
        return WaitingView(
            id=generation.answered_id,
            tenant=request.tenant,
            priority=Priority(request.priority).name.lower(),
            engine=job.replica,
            age_ms=1000 * (self._now - generation.arrival),
            prompt_tokens=generation.prompt_tokens,
            # A partial sum would look like a total.
            cached_tokens=sum(known) if len(known) == len(cached) else None,
            max_tokens=request.params.max_tokens,
            choices=len(generation.choices),
            cause=cause,
            reason=CAUSES[cause],
            slack_ms=self._slack(generation, job),
            is_held=job.is_held,
            request_id=generation.work.request_id,
        )

    def _slack(self, generation: Generation, job: EngineJob) -> float | None:
        deadline = job.request.deadline
        # The deadline is one of the first token.
        if deadline is None or any(choice.first is not None for choice in generation.choices):
            return None
        return 1000 * (job.arrived + deadline - self._now)

    def _running(
        self, generation: Generation, prompt: int, job: EngineJob, choice: JobChoice
    ) -> RunningView:
        request, cause = job.request, choice.timeline.cause
        told = generation.choices[prompt * generation.work.num_choices + choice.index]
        look = self._looks.get(choice.sequence, NOTHING)
        return RunningView(
            id=generation.answered_id,
            choice=told.index,
            tenant=request.tenant,
            priority=Priority(request.priority).name.lower(),
            engine=-1 if job.replica is None else job.replica,
            age_ms=1000 * (self._now - generation.arrival),
            phase=_PHASES.get(Cause(cause), _HELD_BACK),
            cause=AT_ENGINE[cause],
            prompt_tokens=job.prompt_len,
            cached_tokens=told.cached_tokens,
            computed_tokens=look.computed,
            generated_tokens=told.completion_tokens,
            max_tokens=request.params.max_tokens,
            tokens_per_second=_rate(told.completion_tokens, told.first, self._now),
            pages=look.pages,
            preemptions=told.num_preemptions,
            guided=request.params.guide is not None,
            accepted=look.accepted / look.drafted if look.drafted else None,
            request_id=generation.work.request_id,
        )


def has_row(job: EngineJob, choice: JobChoice) -> bool:
    """Whether an unfinished choice is in an engine's batch."""
    is_admitted = job.replica is not None and not choice.is_queued
    return is_admitted and choice.timeline.cause not in _WITHOUT_ROW


def _rate(tokens: int, first: float | None, now: float) -> float:
    """Tokens per second after the first one."""
    return 0.0 if first is None or now <= first else max(0, tokens - 1) / (now - first)
