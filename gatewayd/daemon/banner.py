"""Terminal output for operators: progress while the model loads, then a usage example."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from gatewayd.engines.api import Fleet, ReplicaState, ReplicaStatus

_REFRESH_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class ReadyMessage:
    """Message that is shown once the daemon is ready.

    Attributes:
        model: name of the model.
        url: base URL of the server.
        can_chat: whether the model has a chat template.
        needs_key: whether clients need the API key.
    """

    model: str
    url: str
    can_chat: bool
    needs_key: bool

    def curl(self) -> str:
        """An example command that sends a first request."""
        question = "What does json.dumps do?"
        body: dict[str, object] = {"model": self.model}
        if self.can_chat:
            path, body["messages"] = "chat/completions", [{"role": "user", "content": question}]
        else:
            path, body["prompt"] = "completions", question
        key = ' \\\n  -H "authorization: Bearer $GATEWAYD_API_KEY"' if self.needs_key else ""
        return (
            f"curl {self.url}/v1/{path}{key} \\\n"
            f"  -H 'content-type: application/json' \\\n"
            f"  -d {shlex.quote(json.dumps(body))}"
        )

    def show(self, console: Console, load_seconds: float) -> None:
        """Print the message."""
        title = f"[bold green]gatewayd[/] serves [bold]{self.model}[/] at [link]{self.url}[/]"
        docs = f"{self.url}/v1 is the base URL for any OpenAI client; Ctrl-C stops it."
        console.print(Panel(f"{title}\n{docs}\nReady after {load_seconds:.1f} s.", expand=False))
        console.print("Try:\n")
        # Neither wrapped nor markup: the command is copied as it is, and its JSON has brackets.
        console.print(self.curl(), highlight=False, markup=False, soft_wrap=True)
        console.print()


async def show_loading(fleets: Sequence[tuple[str, Fleet]], console: Console) -> None:
    """Draw progress bars of models until all are ready; cancel it if one fails."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
    )
    # Other output, also of child processes, is kept out of the drawing by ``progress_stderr``.
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as progress:
        # The number of replicas is fixed, so each keeps its bar.
        bars = [
            (
                model,
                fleet,
                [progress.add_task(f"{model}: starting", total=1.0) for _ in fleet.status()],
            )
            for model, fleet in fleets
        ]
        while not all([fleet.is_ready for _, fleet in fleets]):
            for model, fleet, of_model in bars:
                for bar, replica in zip(of_model, fleet.status(), strict=True):
                    text, fraction = _stage(replica)
                    progress.update(bar, description=f"{model}: {text}", completed=fraction)
            await asyncio.sleep(_REFRESH_SECONDS)


def _stage(replica: ReplicaStatus) -> tuple[str, float]:
    """Split progress such as ``loading weights 40%`` into text and fraction."""
    if replica.state is ReplicaState.READY:
        return "ready", 1.0
    text, _, percent = replica.detail.rpartition(" ")
    if percent.endswith("%") and percent[:-1].isdigit():
        return text, int(percent[:-1]) / 100
    return replica.detail, 0.0
