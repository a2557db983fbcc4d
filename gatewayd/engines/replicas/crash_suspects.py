"""Suspects: requests that may have crashed engines, retried one at a time."""

from __future__ import annotations

from collections.abc import Sequence

from gatewayd.engines.job import EngineJob

_SUSPECT_AFTER = 2
"""Losses after which a request is sent only while no other such request is queued."""


class CrashSuspects:
    """Counts the engine losses of jobs; at most one suspect waits at the engines."""

    def __init__(self) -> None:
        self._trial: EngineJob | None = None  # the suspect whose admission is awaited

    def record_loss(self, jobs: Sequence[EngineJob]) -> None:
        """Count a loss as caused by those jobs that may have caused it.

        An engine reports an admission after the step, so a job that crashes it at once still
        counts as waiting. Suspects are therefore tried one by one; one on trial is the cause.
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
        # All of them become suspects after some losses; only `deaths` make a request fail.
        for job in jobs:
            job.losses += 1

    def must_wait(self, job: EngineJob) -> bool:
        """Whether a job must stay pending because another suspect is on trial."""
        return self._trial is not None and _is_suspect(job)

    def sent(self, job: EngineJob) -> None:
        """Record that a job was sent: a suspect is on trial from now on."""
        if _is_suspect(job):
            self._trial = job

    def end_trial(self) -> bool:
        """End the trial if its job was admitted, or is held; return whether one ended."""
        # A held suspect is not computed: waiting for it would block all other suspects.
        if self._trial is None or (self._trial.is_waiting and not self._trial.is_held):
            return False
        self._trial = None
        return True


def _is_suspect(job: EngineJob) -> bool:
    return job.losses >= _SUSPECT_AFTER
