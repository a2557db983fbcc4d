"""Operator actions on requests and cached pages, on whichever engine has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from gatewayd.engines.backlog import Backlog
from gatewayd.engines.job import EngineJob
from gatewayd.engines.replicas.replica import Replica
from gatewayd.engines.replicas.rpc import PendingCalls
from gatewayd.errors import EngineUnavailable
from gatewayd_engine.process.messages import Bump, Command, Evict, Evicted, HoldRequest, Release


class EvictionRefused(Exception):
    """No pages were evicted; the message has the reason."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EngineOperating:
    """Sends operator actions to the engine of a job; a pending job carries its state along.

    Args:
        replicas: all replicas.
        backlog: counts waiting jobs by class.
        deadlines: targets for the time to first token, seconds, by ``Priority``.
    """

    _replicas: Sequence[Replica]
    _backlog: Backlog
    _deadlines: Callable[[], Sequence[float | None]]
    _calls: PendingCalls[Evicted] = field(default_factory=PendingCalls)

    def hold(self, job: EngineJob) -> None:
        """Hold a job, so that it makes no progress until it is released."""
        job.is_held = True
        self._send(job, HoldRequest)

    def release(self, job: EngineJob) -> None:
        """Release a held job."""
        job.is_held = False
        self._send(job, Release)

    def bump(self, job: EngineJob, priority: int | None) -> None:
        """Change the class of a job, or move it to the front of its class.

        With the class it gets the class's deadline, unless it has set its own.
        """
        if priority is None:
            job.is_urgent = True
            self._send(job, Bump)
            return
        # The backlog counts by class, so the job is counted again; `remove` resets `is_waiting`.
        request, is_waiting = job.request, job.is_waiting
        deadline = request.deadline if job.has_deadline else self._deadlines()[priority]
        self._backlog.remove(job)
        job.request = msgspec.structs.replace(request, priority=priority, deadline=deadline)
        if is_waiting:
            self._backlog.add(job)
        self._send(job, lambda sequences: Bump(sequences, priority, deadline))

    def _send(self, job: EngineJob, command: Callable[[list[int]], Command]) -> None:
        if job.replica is not None:
            sequences = [choice.sequence for choice in job.choices if not choice.is_over]
            self._replicas[job.replica].send(command(sequences))

    async def evict(
        self, engine: int | None, page: int | None = None, tenant: str | None = None
    ) -> tuple[int, int]:
        """Evict cached pages that no sequence uses.

        Args:
            engine: index of the replica; None for all that serve.
            page: this page and its descendants; None for those of a tenant.
            tenant: tenant of the pages; None for all tenants.

        Returns:
            Number of pages that were freed, and of those that are in use and stay.

        Raises:
            EvictionRefused: an engine refuses.
            EngineUnavailable: none serves.
        """
        left = [r for r in self._replicas if r.can_serve and engine in (None, r.index)]
        freed, in_use, is_told = 0, 0, False
        # An engine evicts a bounded number of pages at a step boundary, and reports the rest.
        while left:
            answers = await self._calls.call_all(left, lambda number: Evict(number, page, tenant))
            left = []
            for replica, answer in answers:
                # The cache of an engine that is lost is gone, too.
                if answer is None:
                    continue
                if answer.error:
                    raise EvictionRefused(answer.error)
                is_told = True
                freed += answer.pages
                if answer.left:
                    left.append(replica)
                else:
                    # Pages in use are reported in each round, so only the last one counts.
                    in_use += answer.kept
        if not is_told:
            raise EngineUnavailable("no engine is ready; try again", retry_after=2)
        return freed, in_use

    def answered(self, event: Evicted) -> None:
        """Handle an engine's answer to an eviction."""
        self._calls.resolve(event.number, event)

    def lost(self, replica: Replica) -> None:
        """Cancel questions to a lost engine."""
        self._calls.lost(replica)
