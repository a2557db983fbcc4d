"""Dispatch of requests to engines, from arrival to end.

A request is at one engine, or pending until one is ready. When an engine is lost, requests whose
clients have received tokens fail, and all others are dispatched again, in order of arrival.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence

from gatewayd.engines.backlog import Backlog
from gatewayd.engines.job import EngineJob
from gatewayd.engines.replica_view import submit_of, view_of
from gatewayd.engines.replicas.crash_suspects import CrashSuspects
from gatewayd.engines.replicas.engine_requests import SentRequests
from gatewayd.engines.replicas.replica import Replica
from gatewayd.errors import EngineLost, GatewayError, InvalidRequest
from gatewayd.plugins.router import FencedRouter
from gatewayd_engine.process.frames import FrameError
from gatewayd_engine.process.messages import Bump, StepOutput
from gatewayd_hooks.routing import RouteRequest

_log = logging.getLogger(__name__)

# Losses that a request may have caused before it fails. `MAX_BRIEF_LIVES` allows as many before
# restarts are delayed, so that one such request delays no other.
MAX_DEATHS = 5


class Dispatch:
    """Dispatcher of jobs to replicas; its methods are called from the event loop only.

    Args:
        replicas: the engines.
        backlog: counts waiting jobs.
        router: selects the replica of a request.

    Attributes:
        sent: jobs at each replica.
        pending: jobs without a replica, in order of arrival.
        is_held: whether jobs stay pending because the engines are being unloaded.
    """

    def __init__(self, replicas: Sequence[Replica], backlog: Backlog, router: FencedRouter) -> None:
        self._replicas = replicas
        self._backlog = backlog
        self._router = router
        self.sent = [SentRequests(backlog, r.abort, r.strategy_of) for r in replicas]
        self.pending: list[EngineJob] = []
        self.is_held = False
        self._sequences = itertools.count(1)
        self._suspicion = CrashSuspects()

    @property
    def jobs(self) -> list[EngineJob]:
        """All jobs that have not ended."""
        return [*self.pending, *(job for flight in self.sent for job in flight.jobs)]

    @property
    def num_pending(self) -> int:
        """Sequences without an engine."""
        return sum(not choice.is_over for job in self.pending for choice in job.choices)

    @property
    def num_sent(self) -> int:
        """Sequences at engines."""
        return sum(map(len, self.sent))

    @property
    def num_unfinished(self) -> int:
        """Sequences at engines, and pending ones."""
        return self.num_sent + self.num_pending

    @property
    def dropped_tokens(self) -> int:
        """Tokens received for sequences that have ended or are unknown."""
        return sum(flight.dropped_tokens for flight in self.sent)

    def cancel(self, job: EngineJob, index: int | None) -> None:
        """Cancel one choice of a job, or all."""
        choices = [c for c in job.choices if not c.is_over and index in (None, c.index)]
        if not choices:
            return
        now = time.monotonic()
        # Marked first: output that is in flight must not reach the sinks of cancelled choices.
        for choice in choices:
            choice.is_over = True
            choice.timeline.stop(now)
        if job.replica is None:
            # Otherwise the job stays pending as a whole: a choice's index determines its seed.
            if job.is_over:
                self.pending = [other for other in self.pending if other is not job]
                self._backlog.remove(job)
                job.settle_ended()
            return
        for choice in choices:
            self.sent[job.replica].remove(choice)
        self._replicas[job.replica].abort([choice.sequence for choice in choices])

    def deliver(self, replica: Replica, step: StepOutput) -> None:
        """Deliver the output of a replica's step."""
        self.sent[replica.index].deliver(step)
        # If a trial has ended by an admission in this step, the next suspect may be sent.
        if self._suspicion.end_trial():
            self.dispatch_pending()

    def on_lost(self, replica: Replica) -> None:
        """Handle the loss of a replica's engine: fail its jobs or dispatch them again."""
        jobs = self.sent[replica.index].clear_lost()
        # Before `_survives`, which counts jobs as waiting again: the blame depends on admissions.
        self._suspicion.record_loss(jobs)
        kept = [job for job in jobs if self._survives(job)]
        kept = [job for job in kept if not job.is_over]  # cancelled when a sibling failed
        if jobs:
            _log.warning(
                "%s lost with %d requests; %d of them are retried",
                replica.label,
                len(jobs),
                len(kept),
            )
        # Merged by arrival, so that losses do not change the order of requests.
        self.pending = sorted([*self.pending, *kept], key=lambda job: job.number)
        self.dispatch_pending()

    def _survives(self, job: EngineJob) -> bool:
        """Whether a job of a lost engine is retried; otherwise fail it."""
        # Before any sink is called: a sink that cancels the job must not abort at the lost engine.
        job.replica = None
        if job.deaths >= MAX_DEATHS:
            job.fail(EngineLost(f"{job.deaths} engines were lost while they had this request"))
        elif job.request.has_other_target or (job.is_started and not job.request.retry_started):
            job.fail(EngineLost("the engine was lost while it was generating; send it again"))
        else:
            job.restart()
        if job.is_over:
            self._backlog.remove(job)
            job.settle_ended()
            return False
        self._backlog.add(job)
        return True

    def dispatch_pending(self) -> None:
        """Dispatch pending jobs, as far as replicas can serve."""
        # Replaced first: `dispatch` appends jobs that must wait on, and sinks may cancel others.
        jobs, self.pending = self.pending, []
        for job in jobs:
            if job.is_over:
                continue  # cancelled when a sibling failed
            try:
                self.dispatch(job)
            except InvalidRequest as error:
                # A job that arrived while no engine was ready is encoded for the first time here.
                job.fail(error)
                job.settle_ended()

    def dispatch(self, job: EngineJob) -> None:
        """Dispatch a job to a replica, or keep it pending until one is ready.

        Raises:
            InvalidRequest: it exceeds the size of a frame.
        """
        serving = [replica for replica in self._replicas if replica.can_serve]
        # Unresponsive replicas are used only if no other is left.
        chosen = [replica for replica in serving if replica.is_responsive] or serving
        views = [view_of(replica, self.sent[replica.index]) for replica in chosen]
        if self.is_held or not views or self._suspicion.must_wait(job):
            self.pending.append(job)
            return
        request = job.request
        index = self._router.route(
            RouteRequest(request.prompt, request.salt, request.priority, request.cache_key), views
        )
        for choice in job.choices:
            choice.sequence = next(self._sequences)
        replica = self._replicas[index]
        try:
            replica.send(submit_of(job))
            # `Submit` does not say that an operator has moved the request to the front.
            if job.is_urgent:
                replica.send(Bump([choice.sequence for choice in job.choices]))
        except FrameError as error:
            self._backlog.remove(job)
            raise InvalidRequest(f"the request is too large: {error}") from error
        # After the frame was accepted: a job that is too large has no replica.
        job.replica = job.last_replica = index
        self._suspicion.sent(job)
        self.sent[index].add(job)
        # Submitted nevertheless: a choice's index among its siblings determines its seed.
        if over := [choice.sequence for choice in job.choices if choice.is_over]:
            replica.abort(over)

    def fail_pending(self, error: GatewayError) -> None:
        """Fail all jobs without an engine."""
        jobs, self.pending = self.pending, []
        self._fail(jobs, error)

    def fail_all(self, error: GatewayError) -> None:
        """Fail all jobs that have not ended."""
        # Removed everywhere first, as sinks that fail may cancel further jobs.
        jobs = list(self.pending)
        self.pending.clear()
        for flight in self.sent:
            jobs += flight.clear_lost()
        self._fail(jobs, error)

    def _fail(self, jobs: Sequence[EngineJob], error: GatewayError) -> None:
        for job in jobs:
            self._backlog.remove(job)
            job.fail(error)
            job.settle_ended()
