"""Handle of a submitted request, for its submitter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gatewayd.engines.job import EngineJob
from gatewayd.engines.prompt_usage import PromptUsage
from gatewayd.tracing.timeline import Timeline


class Canceller(Protocol):
    """Cancels jobs."""

    def cancel(self, job: EngineJob, index: int | None) -> None:
        """Cancel one choice of a job, or all."""


class JobHandle:
    """Implements ``api.Handle``.

    Attributes:
        job: the submitted job.
    """

    __slots__ = ("_fleet", "job")

    def __init__(self, fleet: Canceller, job: EngineJob) -> None:
        self._fleet = fleet
        self.job = job

    def cancel(self, choice: int | None = None) -> None:
        """See ``api.Handle``."""
        self._fleet.cancel(self.job, choice)

    @property
    def replica(self) -> int | None:
        """See ``api.Handle``."""
        return self.job.last_replica

    def on_usage_final(self, tell: Callable[[PromptUsage], None]) -> None:
        """See ``api.Handle``."""
        self.job.on_spent = tell
        self.job.on_choice_settled()

    @property
    def usage(self) -> PromptUsage:
        """See ``api.Handle``."""
        return self.job.usage

    @property
    def timelines(self) -> Sequence[Timeline]:
        """See ``api.Handle``."""
        return [choice.timeline for choice in self.job.choices]
