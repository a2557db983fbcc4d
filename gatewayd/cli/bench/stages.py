"""Progress of a measurement on stderr: a line for each result and, on a terminal, a bar."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich import progress
from rich.console import Console

DRAWS_PER_SECOND = 2


class Stages:
    """One bar for what is being done now; what is done stays as a line above it."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TimeElapsedColumn(),
            console=self._console,
            refresh_per_second=DRAWS_PER_SECOND,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._name = ""
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

    def advance(self, name: str, done: float, total: float) -> None:
        """So much of a stage is done; another name begins another stage."""
        if self._bar.disable:
            return
        if name != self._name or self._task is None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._name, self._task = name, self._bar.add_task(name, total=total)
        self._bar.update(self._task, completed=done, total=total)

    def say(self, line: str) -> None:
        """A result, which stays."""
        self._console.print(line, markup=False, soft_wrap=True)
