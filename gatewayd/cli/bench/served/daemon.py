"""A daemon for the length of a measurement, ended whatever happens.

It shares nothing with other daemons: its port is a free one, and what a user's daemon keeps in the
user's state folder, the store above all, is in a folder that goes with it.
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
_LIBC = ctypes.CDLL(None)


class DaemonError(Exception):
    """The daemon does not serve; the end of its log says why."""


class _Line(msgspec.Struct):
    event: str = ""


@asynccontextmanager
async def serving(
    environment: Mapping[str, str], watch: Callable[[str], None] = lambda stage: None
) -> AsyncIterator[str]:
    """Run a daemon while the block lasts; gives its URL once it is ready.

    Args:
        environment: its configuration; variables of our own environment that would change it are
            left out.
        watch: told what it is doing until then.

    Raises:
        DaemonError: it ended instead.
    """
    with TemporaryDirectory(prefix="gatewayd-bench-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = await children.start_async(
                children.python("-m", "gatewayd", "serve", "--port", "0"),
                env=children.environment_of_person() | dict(environment) | _OWN | _places(folder),
                cwd=os.getcwd(),  # from which its configuration's paths are meant
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=_end_with_us if sys.platform == "linux" else None,
                start_new_session=True,  # Ctrl-C is for us; we end it
            )
        try:
            yield await _ready(process, log, watch)
        finally:
            await _end(process)


def _places(folder: str) -> dict[str, str]:
    """Where it keeps what a user's daemon keeps in the user's state folder."""
    return {"GATEWAYD_STORE__PATH": f"{folder}/store", "XDG_STATE_HOME": f"{folder}/state"}


def _end_with_us() -> None:
    """In the child before it becomes the daemon: SIGTERM when we end, even by SIGKILL."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def _ready(
    process: asyncio.subprocess.Process, log: Path, watch: Callable[[str], None]
) -> str:
    url = ""
    while True:
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
    """What it has logged so far; a line that is not JSON, such as a traceback's, as it is."""
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
