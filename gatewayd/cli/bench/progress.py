"""Progress bars on stderr, redrawn rarely, because the benchmark shares cores with its target."""

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
    """Single progress bar for the current task; disabled if stderr is not a terminal."""

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

    def _start_task(self, name: str, total: float) -> progress.TaskID:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=total, done=0, failed=0)
        return self._task


class BenchProgress(_Bar):
    """Progress bar of the current load level."""

    def __init__(self, plan: SweepPlan) -> None:
        super().__init__(
            progress.TextColumn("{task.fields[done]} requests, {task.fields[failed]} failed")
        )
        self._stop = plan.stop
        self._load: LoadLevel | None = None
        self._begin = 0.0
        self._done = self._failed = 0

    def advance(self, load: LoadLevel, record: RequestRecord) -> None:
        """Count a request of a level that has ended."""
        # Without a terminal there is nothing to draw, and the target needs the cores.
        if self._bar.disable:
            return
        task = self._task
        if load != self._load or task is None:
            self._load, self._begin = load, record.intended
            self._done = self._failed = 0
            task = self._start_task(str(load), 1.0)
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
    """Progress bar of the current stage, with permanent lines printed above it."""

    def __init__(self) -> None:
        super().__init__(progress.TaskProgressColumn())
        self._name = ""

    def advance(self, name: str, done: float, total: float) -> None:
        """Update the progress of a stage; a new name starts a new bar."""
        if self._bar.disable:
            return
        task = self._task
        if name != self._name or task is None:
            self._name, task = name, self._start_task(name, total)
        self._bar.update(task, completed=done, total=total)

    def print_line(self, line: str) -> None:
        """Print a permanent line above the bar."""
        self._console.print(line, markup=False, soft_wrap=True)
