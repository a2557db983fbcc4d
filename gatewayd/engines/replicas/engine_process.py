"""Engine processes: started by an executor, which may be a plugin's, waited for, ended."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import socket
import time
from enum import Enum

from gatewayd.engines.replicas.silence_limits import SilenceLimits
from gatewayd_hooks.execution import EngineCommand, EngineProcess, ExecutorStrategy

_log = logging.getLogger(__name__)
_BACKOFF_SECONDS = (1.0, 2.0, 4.0)
_REAP_SECONDS = 10.0
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT))
_CRASHES |= {signal.SIGINT}  # engines ignore it, but Python ends by it after a KeyboardInterrupt
"""Signals by which a process ends through its own fault."""
_LAST_SECONDS = 1.0
"""For one whose connection has ended to end by itself: its exit status says why."""
_METHODS = ("poll", "terminate", "abort", "kill")


class FencedProcess:
    """A started engine whose methods do not raise.

    Attributes:
        pid: its process id.
        socket: our end of its stream socket.
    """

    def __init__(self, process: EngineProcess) -> None:
        """Look at what an executor has started.

        Raises:
            TypeError: it is no engine process.
        """
        self.pid, self.socket = process.pid, process.socket
        if not isinstance(self.pid, int) or not isinstance(self.socket, socket.socket):
            raise TypeError("the executor started something without pid and socket")
        missing = [name for name in _METHODS if not callable(getattr(process, name, None))]
        if missing:
            raise TypeError(f"what the executor started has no {', '.join(missing)}")
        self._process = process

    def poll(self) -> int | None:
        """Its exit status; None while it lives, and while nobody knows."""
        try:
            status = self._process.poll()
        except Exception as error:  # noqa: BLE001 - an executor may be a plugin's
            self._warn("poll", error)
            return None
        return status if isinstance(status, int) else None

    def terminate(self) -> None:
        """Ask it to stop."""
        self._signal("terminate")

    def abort(self) -> None:
        """Make it write its stacks and die."""
        self._signal("abort")

    def kill(self) -> None:
        """Stop it now."""
        self._signal("kill")

    def _signal(self, method: str) -> None:
        try:
            getattr(self._process, method)()
        except Exception as error:  # noqa: BLE001 - an executor may be a plugin's
            self._warn(method, error)

    def _warn(self, method: str, error: Exception) -> None:
        _log.error("executor call %s failed for process %d: %r", method, self.pid, error)


def start(executor: ExecutorStrategy, command: EngineCommand) -> FencedProcess:
    """Start one engine.

    Raises:
        Exception: whatever the executor raises, or what is wrong with its answer.
    """
    return FencedProcess(executor.start(command))


def has_crashed(status: int | None) -> bool:
    """Whether a process ended by itself, or by a signal that its own fault brings about."""
    return status is not None and (status >= 0 or -status in _CRASHES)


class ProcessExit(Enum):
    """How far an engine has come when its process is to end."""

    LOADING = "loading"
    ASKED = "asked"
    HUNG = "hung"
    LOST = "lost"


async def bury(
    process: FencedProcess, patience: SilenceLimits, ending: ProcessExit, more_seconds: float = 0.0
) -> int | None:
    """End a process and wait for it.

    Args:
        process: the engine.
        patience: how long it may take.
        ending: how far it has come.
        more_seconds: that one may take which was asked to end.

    Returns:
        Its exit status; None if it will not go.
    """
    if ending is ProcessExit.HUNG:
        process.abort()
        await wait_exit(process, patience.dump_seconds)
    elif ending is ProcessExit.LOST:
        await wait_exit(process, _LAST_SECONDS)
    else:
        stop_seconds = patience.stop_seconds + more_seconds
        if ending is ProcessExit.LOADING or await wait_exit(process, stop_seconds) is None:
            process.terminate()
        await wait_exit(process, patience.stop_seconds)
    if process.poll() is None:
        process.kill()
    return await wait_exit(process, _REAP_SECONDS)


async def wait_exit(process: FencedProcess, seconds: float) -> int | None:
    """Wait for its exit status; None if it has none by then."""
    deadline = time.monotonic() + seconds
    while (status := process.poll()) is None and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.005)  # an executor offers no event, for it may be far away
    return status


def backoff(failures: int) -> float:
    """Seconds before the next start: none after an engine that served."""
    if not failures:
        return 0.0
    base = _BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS)) - 1]
    return base * random.uniform(0.75, 1.25)


def ending(status: int | None) -> str:
    """How a process ended, in words."""
    if status is None:
        return "it does not exit"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"
