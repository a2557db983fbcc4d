"""A progress bar on stderr, drawn rarely: the bench shares its cores with the server."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich import progress
from rich.console import Console

from gatewayd.cli.bench.record import RequestRecord
from gatewayd.cli.bench.sweep import LoadLevel, SweepPlan

DRAWS_PER_SECOND = 2


class BenchProgress:
    """One bar for the level that runs; shows nothing where stderr is no terminal."""

    def __init__(self, plan: SweepPlan) -> None:
        self._stop = plan.stop
        console = Console(stderr=True)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[done]} requests, {task.fields[failed]} failed"),
            progress.TimeElapsedColumn(),
            console=console,
            refresh_per_second=DRAWS_PER_SECOND,
            transient=True,
            disable=not console.is_terminal,
        )
        self._load: LoadLevel | None = None
        self._task: progress.TaskID | None = None
        self._begin = 0.0
        self._done = self._failed = 0

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

    def advance(self, load: LoadLevel, record: RequestRecord) -> None:
        """A request of a level has ended."""
        if self._bar.disable:
            return
        if load != self._load or self._task is None:
            self._load, self._begin = load, record.intended
            self._done = self._failed = 0
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(str(load), total=1.0, done=0, failed=0)
        self._done += 1
        self._failed += record.error is not None
        shares = [
            self._done / self._stop.requests if self._stop.requests else 0.0,
            (time.perf_counter() - self._begin) / self._stop.seconds if self._stop.seconds else 0.0,
        ]
        self._bar.update(
            self._task, completed=min(1.0, max(shares)), done=self._done, failed=self._failed
        )
