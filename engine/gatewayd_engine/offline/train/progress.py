"""Progress bar of the stages that train draft heads and predictors."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


def bar_on(console: Console) -> Progress:
    """Make a progress bar that shows the fraction done, a count and the loss."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[count]:,} {task.fields[unit]}{task.fields[loss]}"),
        console=console,
    )


def progress_callback(bar: Progress, name: str, unit: str) -> Callable[..., None]:
    """Add a task to the bar; return the callback that updates its fraction, count and loss."""
    task = bar.add_task(name, total=1.0, count=0, unit=unit, loss="")

    def report(done: float, count: int, loss: float | None = None) -> None:
        shown = "" if loss is None else f"  loss {loss:.3f}"
        bar.update(task, completed=done, count=count, loss=shown)

    return report
