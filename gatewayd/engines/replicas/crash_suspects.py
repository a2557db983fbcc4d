"""Which requests may have caused the loss of engines, and the trial of those, one at a time."""

from __future__ import annotations

from collections.abc import Sequence

from gatewayd.engines.job import EngineJob

_SUSPECT_AFTER = 2
"""Losses after which a request is sent with no other such request in the queue beside it."""


class CrashSuspects:
    """Counts the losses of jobs; at most one suspect waits at the engines."""

    def __init__(self) -> None:
        self._trial: EngineJob | None = None  # the suspect whose admission is awaited

    def blame(self, jobs: Sequence[EngineJob]) -> None:
        """Count a death for those jobs of a lost engine that may have caused it.

        An engine tells of an admission after the step, so a job that ends it at once is still
        called waiting. Suspects are therefore tried one by one, and one on trial is the cause.
        """
        if self._trial in jobs:
            blamed = [job for job in jobs if job is self._trial]
            self._trial = None
        elif len(jobs) == 1:
            blamed = list(jobs)
        else:
            blamed = [job for job in jobs if not job.is_waiting]
        for job in blamed:
            job.deaths += 1
        for job in jobs:
            job.losses += 1

    def must_wait(self, job: EngineJob) -> bool:
        """Whether a job may not be sent now, because another suspect is on trial."""
        return self._trial is not None and _is_suspect(job)

    def sent(self, job: EngineJob) -> None:
        """A job was sent to an engine: a suspect is on trial from now on."""
        if _is_suspect(job):
            self._trial = job

    def end_trial(self) -> bool:
        """End the trial if its job was admitted, or is held; returns whether one ended."""
        if self._trial is None or (self._trial.is_waiting and not self._trial.is_held):
            return False
        self._trial = None
        return True


def _is_suspect(job: EngineJob) -> bool:
    return job.losses >= _SUSPECT_AFTER
