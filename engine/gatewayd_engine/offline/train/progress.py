"""The bar of a stage that trains something small beside a model."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


def bar_on(console: Console) -> Progress:
    """Shows how much is done, of what, and the loss."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[count]:,} {task.fields[unit]}{task.fields[loss]}"),
        console=console,
    )


def told_by(bar: Progress, name: str, unit: str) -> Callable[..., None]:
    """A task of the bar, told by its share that is done, its count, and its loss if it has one."""
    task = bar.add_task(name, total=1.0, count=0, unit=unit, loss="")

    def tell(done: float, count: int, loss: float | None = None) -> None:
        shown = "" if loss is None else f"  loss {loss:.3f}"
        bar.update(task, completed=done, count=count, loss=shown)

    return tell
