"""Daemon process for the duration of a benchmark.

It shares nothing with other daemons: it listens on a free port, and its store and state are in a
temporary folder.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from gatewayd_hooks.helpers import children

_LOOK_SECONDS = 0.1
_DRAIN_SECONDS = 2
_STOP_SECONDS = 15.0
_LAST_LINES = 5
_PR_SET_PDEATHSIG = 1
_LISTENING, _READY = "listening on ", ", ready after "

_OWN = {
    "GATEWAYD_LOG__FORMAT": "json",
    "GATEWAYD_LOG__LEVEL": "info",
    "GATEWAYD_SERVER__DRAIN_SECONDS": str(_DRAIN_SECONDS),
}
# Loaded here, since between fork and exec as little as possible should run.
_LIBC = ctypes.CDLL(None)


class DaemonError(Exception):
    """The daemon did not start; the message contains the end of its log."""


class _Line(msgspec.Struct):
    event: str = ""


@asynccontextmanager
async def serving(
    environment: Mapping[str, str], watch: Callable[[str], None] = lambda stage: None
) -> AsyncIterator[str]:
    """Run a daemon for the duration of the block; provide its URL once it is ready.

    Args:
        environment: its configuration as environment variables; inherited variables that would
            change the configuration are removed.
        watch: called with its latest log event until it is ready.

    Raises:
        DaemonError: it exited before it was ready.
    """
    with TemporaryDirectory(prefix="gatewayd-bench-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = await children.start_async(
                children.python("-m", "gatewayd", "serve", "--port", "0"),
                env=children.environment_of_person() | dict(environment) | _OWN | _places(folder),
                cwd=os.getcwd(),  # paths in its configuration are relative to it
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=_end_with_us if sys.platform == "linux" else None,
                start_new_session=True,  # Ctrl-C reaches only this process, which stops it
            )
        try:
            yield await _ready(process, log, watch)
        finally:
            await _end(process)


def _places(folder: str) -> dict[str, str]:
    """Return variables that move the store and the state into a folder."""
    return {"GATEWAYD_STORE__PATH": f"{folder}/store", "XDG_STATE_HOME": f"{folder}/state"}


def _end_with_us() -> None:
    """Request SIGTERM for the child when its parent dies, even by SIGKILL; runs before exec."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def _ready(
    process: asyncio.subprocess.Process, log: Path, watch: Callable[[str], None]
) -> str:
    url = ""
    while True:
        # Before the log is read, so that its last lines are seen.
        has_ended = process.returncode is not None
        events = _events(log)
        for event in events:
            if event.startswith(_LISTENING):
                url = event.removeprefix(_LISTENING).split(",")[0]
            elif _READY in event:
                return url
        if has_ended:
            raise DaemonError(
                f"the daemon did not start serving: {'; '.join(events[-_LAST_LINES:])}"
            )
        if events:
            watch(events[-1])
        await asyncio.sleep(_LOOK_SECONDS)


def _events(log: Path) -> list[str]:
    """Read the log events so far; lines that are not JSON, as of tracebacks, are kept as is."""
    events = []
    for line in log.read_text("utf-8", errors="replace").splitlines():
        try:
            events.append(msgspec.json.decode(line, type=_Line).event)
        except msgspec.DecodeError:
            events.append(line)
    return events


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
