"""What an operator does to requests and cached pages, wherever the engines have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gatewayd.engines.backlog import Backlog
from gatewayd.engines.job import EngineJob
from gatewayd.engines.replicas.replica import Replica
from gatewayd.engines.replicas.rpc import Asking
from gatewayd.errors import EngineUnavailable
from gatewayd_engine.process.messages import Bump, Command, Evict, Evicted, HoldRequest, Release


class EvictionRefused(Exception):
    """Nothing is given up; the sentence says why."""


class EngineOperating:
    """Tells the engine that has a job; one that no engine has brings its state with it.

    Args:
        replicas: all of them.
        backlog: counts jobs by class.
        deadlines: seconds to the first token that are wanted, by ``Priority``.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        backlog: Backlog,
        deadlines: Callable[[], Sequence[float | None]],
    ) -> None:
        self._replicas = replicas
        self._backlog = backlog
        self._deadlines = deadlines
        self._asking: Asking[Evicted] = Asking()

    def hold(self, job: EngineJob) -> None:
        """Let a job make no progress until it is released."""
        job.is_held = True
        self._tell(job, HoldRequest)

    def release(self, job: EngineJob) -> None:
        """Let it go on."""
        job.is_held = False
        self._tell(job, Release)

    def bump(self, job: EngineJob, priority: int | None) -> None:
        """Change the class of a job, or put it first in the one it has.

        It then has the class's target for its first token, unless it brought one of its own.
        """
        if priority is None:
            job.is_urgent = True
            self._tell(job, Bump)
            return
        request, is_waiting = job.request, job.is_waiting
        deadline = request.deadline if job.has_deadline else self._deadlines()[priority]
        self._backlog.leave(job)
        job.request = replace(request, priority=priority, deadline=deadline)
        if is_waiting:
            self._backlog.enter(job)
        self._tell(job, lambda sequences: Bump(sequences, priority, deadline))

    def _tell(self, job: EngineJob, command: Callable[[list[int]], Command]) -> None:
        if job.replica is not None:
            sequences = [choice.sequence for choice in job.choices if not choice.is_over]
            self._replicas[job.replica].send(command(sequences))

    async def evict(
        self, engine: int | None, page: int | None = None, tenant: str | None = None
    ) -> tuple[int, int]:
        """Give up cached pages that no sequence uses.

        Args:
            engine: of which; None for all that serve.
            page: this one and those behind it; None for those of a tenant.
            tenant: whose; None for everybody's.

        Returns:
            Pages that are free now, and those that are in use and stay.

        Raises:
            EvictionRefused: an engine gives up none.
            EngineUnavailable: none serves.
        """
        left = [r for r in self._replicas if r.can_serve and engine in (None, r.index)]
        freed, in_use, is_told = 0, 0, False
        while left:
            answers = await self._asking.ask_all(left, lambda number: Evict(number, page, tenant))
            left = []
            for replica, answer in answers:
                if answer is None:
                    continue
                if answer.error:
                    raise EvictionRefused(answer.error)
                is_told = True
                freed += answer.pages
                if answer.left:
                    left.append(replica)
                else:
                    in_use += answer.kept
        if not is_told:
            raise EngineUnavailable("no engine is ready; try again", retry_after=2)
        return freed, in_use

    def answered(self, event: Evicted) -> None:
        """An engine has given up pages, or refuses."""
        self._asking.answered(event.number, event)

    def lost(self, replica: Replica) -> None:
        """An engine is gone: it answers nothing any more."""
        self._asking.lost(replica)
