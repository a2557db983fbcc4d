"""Progress on stderr, drawn rarely: the bench shares its cores with what it measures."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich import progress
from rich.console import Console

from gatewayd.cli.bench.record import RequestRecord
from gatewayd.cli.bench.sweep import LoadLevel, SweepPlan

DRAWS_PER_SECOND = 2


class _Bar:
    """One bar for what is being done now; shows nothing where stderr is no terminal."""

    def __init__(self, *columns: progress.ProgressColumn) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            *columns,
            progress.TimeElapsedColumn(),
            console=self._console,
            refresh_per_second=DRAWS_PER_SECOND,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task: progress.TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def _begin_task(self, name: str, total: float) -> progress.TaskID:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=total, done=0, failed=0)
        return self._task


class BenchProgress(_Bar):
    """For the level of load that runs."""

    def __init__(self, plan: SweepPlan) -> None:
        super().__init__(
            progress.TextColumn("{task.fields[done]} requests, {task.fields[failed]} failed")
        )
        self._stop = plan.stop
        self._load: LoadLevel | None = None
        self._begin = 0.0
        self._done = self._failed = 0

    def advance(self, load: LoadLevel, record: RequestRecord) -> None:
        """A request of a level has ended."""
        if self._bar.disable:
            return
        task = self._task
        if load != self._load or task is None:
            self._load, self._begin = load, record.intended
            self._done = self._failed = 0
            task = self._begin_task(str(load), 1.0)
        self._done += 1
        self._failed += record.error is not None
        shares = [
            self._done / self._stop.requests if self._stop.requests else 0.0,
            (time.perf_counter() - self._begin) / self._stop.seconds if self._stop.seconds else 0.0,
        ]
        self._bar.update(
            task, completed=min(1.0, max(shares)), done=self._done, failed=self._failed
        )


class Stages(_Bar):
    """For the stage of a measurement; what is done stays as a line above it."""

    def __init__(self) -> None:
        super().__init__(progress.TaskProgressColumn())
        self._name = ""

    def advance(self, name: str, done: float, total: float) -> None:
        """So much of a stage is done; another name begins another stage."""
        if self._bar.disable:
            return
        task = self._task
        if name != self._name or task is None:
            self._name, task = name, self._begin_task(name, total)
        self._bar.update(task, completed=done, total=total)

    def say(self, line: str) -> None:
        """A result, which stays."""
        self._console.print(line, markup=False, soft_wrap=True)
