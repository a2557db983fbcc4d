"""Every request from its arrival to its end.

A request is with one engine, or pending until one is ready. Losing an engine ends the requests
whose clients have seen tokens and sends all others again, in order of arrival.
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

MAX_DEATHS = 5


class Dispatch:
    """The jobs of all engines; its methods are called from the event loop only.

    Args:
        replicas: the engines.
        backlog: is left by jobs that end.
        router: which replica serves a request.

    Attributes:
        flights: what is at each replica.
        pending: what is at none, in order of arrival.
    """

    def __init__(self, replicas: Sequence[Replica], backlog: Backlog, router: FencedRouter) -> None:
        self._replicas = replicas
        self._backlog = backlog
        self._router = router
        self.flights = [SentRequests(backlog, r.abort, r.strategy_of) for r in replicas]
        self.pending: list[EngineJob] = []
        self._sequences = itertools.count(1)
        self._suspicion = CrashSuspects()

    @property
    def jobs(self) -> list[EngineJob]:
        """All that have not ended."""
        return [*self.pending, *(job for flight in self.flights for job in flight.jobs)]

    @property
    def num_pending(self) -> int:
        """Sequences that are at no engine."""
        return sum(not choice.is_over for job in self.pending for choice in job.choices)

    @property
    def num_unfinished(self) -> int:
        """Sequences at engines, and those that are pending."""
        return sum(map(len, self.flights)) + self.num_pending

    @property
    def dropped_tokens(self) -> int:
        """Tokens that came for sequences that are over, or never were."""
        return sum(flight.dropped_tokens for flight in self.flights)

    def cancel(self, job: EngineJob, index: int | None) -> None:
        """Stop one choice of a job, or all."""
        choices = [c for c in job.choices if not c.is_over and index in (None, c.index)]
        if not choices:
            return
        now = time.monotonic()
        for choice in choices:
            choice.is_over = True
            choice.timeline.stop(now)
        if job.replica is None:
            if job.is_over:
                self.pending = [other for other in self.pending if other is not job]
                self._backlog.leave(job)
                job.settle()
            return
        for choice in choices:
            self.flights[job.replica].drop(choice)
        self._replicas[job.replica].abort([choice.sequence for choice in choices])

    def deliver(self, replica: Replica, step: StepOutput) -> None:
        """Hand out what a replica has computed."""
        self.flights[replica.index].deliver(step)
        if self._suspicion.end_trial():
            self.place_pending()

    def lost(self, replica: Replica) -> None:
        """The engine of a replica is gone: end its jobs or send them again."""
        jobs = self.flights[replica.index].lose()
        self._suspicion.blame(jobs)
        kept = [job for job in jobs if self._survives(job)]
        kept = [job for job in kept if not job.is_over]  # cancelled when a sibling failed
        if jobs:
            _log.warning(
                "engine %d lost with %d requests; %d of them are retried",
                replica.index,
                len(jobs),
                len(kept),
            )
        self.pending = sorted([*self.pending, *kept], key=lambda job: job.number)
        self.place_pending()

    def _survives(self, job: EngineJob) -> bool:
        """Whether a job of a lost engine goes on; if not, it has failed now."""
        job.replica = None
        if job.deaths >= MAX_DEATHS:
            job.fail(EngineLost(f"{job.deaths} engines were lost while they had this request"))
        elif job.is_started and not job.request.retry_started:
            job.fail(EngineLost("the engine was lost while it was generating; send it again"))
        else:
            job.restart()
        if job.is_over:
            self._backlog.leave(job)
            job.settle()
            return False
        self._backlog.enter(job)
        return True

    def place_pending(self) -> None:
        """Send what is at no engine, as far as one can serve."""
        jobs, self.pending = self.pending, []
        for job in jobs:
            if job.is_over:
                continue  # cancelled when a sibling failed
            try:
                self.place(job)
            except InvalidRequest as error:
                job.fail(error)
                job.settle()

    def place(self, job: EngineJob) -> None:
        """Send a job to a replica, or keep it until one is ready.

        Raises:
            InvalidRequest: it does not fit into a frame.
        """
        serving = [replica for replica in self._replicas if replica.can_serve]
        # One that has fallen silent is asked only if no other is left.
        chosen = [replica for replica in serving if replica.is_responsive] or serving
        views = [view_of(replica, self.flights[replica.index]) for replica in chosen]
        if not views or self._suspicion.must_wait(job):
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
            if job.is_urgent:
                replica.send(Bump([choice.sequence for choice in job.choices]))
        except FrameError as error:
            self._backlog.leave(job)
            raise InvalidRequest(f"the request is too large: {error}") from error
        job.replica = job.last_replica = index
        self._suspicion.sent(job)
        self.flights[index].add(job)
        # Submitted nevertheless: a choice's place among its siblings decides its seed.
        if over := [choice.sequence for choice in job.choices if choice.is_over]:
            replica.abort(over)

    def fail_pending(self, error: GatewayError) -> None:
        """Fail all that is at no engine."""
        jobs, self.pending = self.pending, []
        self._fail(jobs, error)

    def fail_all(self, error: GatewayError) -> None:
        """Fail all that has not ended."""
        jobs = list(self.pending)
        self.pending.clear()
        for flight in self.flights:
            jobs += flight.lose()
        self._fail(jobs, error)

    def _fail(self, jobs: Sequence[EngineJob], error: GatewayError) -> None:
        for job in jobs:
            self._backlog.leave(job)
            job.fail(error)
            job.settle()
