"""What whoever has submitted a request holds of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gatewayd.engines.job import EngineJob
from gatewayd.engines.prompt_usage import PromptUsage
from gatewayd.tracing.timeline import Timeline


class Canceller(Protocol):
    """Who stops jobs."""

    def cancel(self, job: EngineJob, index: int | None) -> None:
        """Stop one choice of a job, or all."""


class JobHandle:
    """Implements ``seam.Handle``.

    Attributes:
        job: what was submitted.
    """

    __slots__ = ("_fleet", "job")

    def __init__(self, fleet: Canceller, job: EngineJob) -> None:
        self._fleet = fleet
        self.job = job

    def cancel(self, choice: int | None = None) -> None:
        """See ``seam.Handle``."""
        self._fleet.cancel(self.job, choice)

    @property
    def replica(self) -> int | None:
        """See ``seam.Handle``."""
        return self.job.last_replica

    def when_spent(self, tell: Callable[[PromptUsage], None]) -> None:
        """See ``seam.Handle``."""
        self.job.on_spent = tell
        self.job.note_settled()

    @property
    def taken(self) -> PromptUsage:
        """See ``seam.Handle``."""
        return self.job.taken

    @property
    def timelines(self) -> Sequence[Timeline]:
        """See ``seam.Handle``."""
        return [choice.timeline for choice in self.job.choices]
