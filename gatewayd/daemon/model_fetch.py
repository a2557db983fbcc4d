"""Fetch of a model of the Hub before the daemon is composed, if it is not in the store.

What is in the store is served without asking the Hub: a start changes no model, and needs no
network. ``gatewayd model pull`` fetches a newer commit of a branch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from gatewayd.config.tables import Config
from gatewayd.daemon.systemd.notify import notify
from gatewayd.hub.errors import NOT_STORED, HubError
from gatewayd.hub.pull_events import PullEvent
from gatewayd.hub.pull_process import ModelPulls
from gatewayd.hub.reference import HubReference, is_reference, parse_reference
from gatewayd.hub.store import path_of, store_folder

_log = logging.getLogger("gatewayd.daemon")

_LOG_SECONDS = 10.0
_NOTIFY_SECONDS = 5.0
_EXTEND_SECONDS = 60
"""Extension of the service manager's start timeout, while the pull makes progress."""
_SILENT_SECONDS = 1200.0
"""Longest time without progress: a rate limit is waited for five minutes three times, and of the
largest files, of 50 GB, the verification tells nothing either."""
_MIB = 1 << 20


def fetch_model(config: Config) -> bool:
    """Fetch the configured model, unless it is no model of the Hub, or stored completely.

    Returns:
        Whether the start goes on; False if a signal has stopped it.

    Raises:
        HubError: it cannot be fetched.
    """
    path = config.model.path
    if path is None or not is_reference(path):
        return True
    reference = parse_reference(path)
    try:
        path_of(reference)
    except HubError as error:
        if error.code != NOT_STORED:
            raise
    else:
        return True
    _log.info("fetching %s into %s", reference, store_folder())
    try:
        asyncio.run(_fetch(reference))
    except asyncio.CancelledError:
        _log.info("stopped while fetching %s; complete files are in the store", reference)
        return False
    path_of(reference)
    return True


async def _fetch(reference: HubReference) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is None:
        raise RuntimeError("not called in a task")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    progress = _Watched()
    notifying = asyncio.create_task(_extend_timeout(reference, progress))
    pulls = ModelPulls()
    console = Console(file=sys.stderr)
    try:
        async with contextlib.aclosing(pulls.pull(reference)) as pull:
            events = progress.watch(pull)
            await (draw(events, console) if console.is_terminal else _write(events))
    finally:
        notifying.cancel()
        await pulls.close()


class _Watched:
    """Watches the progress of a pull."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    @property
    def seconds(self) -> float:
        """Time since there was some."""
        return time.monotonic() - self._last

    async def watch(self, events: AsyncIterator[PullEvent]) -> AsyncIterator[PullEvent]:
        """Yield events."""
        before: PullEvent | None = None
        async for event in events:
            if event != before:
                before, self._last = event, time.monotonic()
            yield event


async def _extend_timeout(reference: HubReference, progress: _Watched) -> None:
    """Extend the start timeout until cancelled, while the pull makes progress."""
    while True:
        if progress.seconds < _SILENT_SECONDS:
            notify(
                f"EXTEND_TIMEOUT_USEC={_EXTEND_SECONDS * 1_000_000}\nSTATUS=fetching {reference}"
            )
        await asyncio.sleep(_NOTIFY_SECONDS)


async def _write(events: AsyncIterator[PullEvent]) -> None:
    """Log the progress, every few seconds and at the end of each file."""
    told = 0.0
    async for event in events:
        is_end = event.stage == "verifying"
        if event.file and (is_end or time.monotonic() - told >= _LOG_SECONDS):
            told = time.monotonic()
            _log.info(
                "%s %s: %.1f of %.1f MiB",
                *(event.stage, event.file, event.completed / _MIB, event.total / _MIB),
            )


async def draw(events: AsyncIterator[PullEvent], console: Console) -> None:
    """Draw a bar for the current file, until the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(
        *columns,
        TransferSpeedColumn(),
        console=console,
        transient=True,
        # The process of the pull may write its own warnings.
        redirect_stdout=False,
        redirect_stderr=False,
    ) as progress:
        bar = progress.add_task("listing files", total=None)
        file = ""
        async for event in events:
            if event.file != file:
                file = event.file
                progress.reset(bar, total=event.total, description=file)
            progress.update(bar, description=f"{event.stage} {file}", completed=event.completed)
