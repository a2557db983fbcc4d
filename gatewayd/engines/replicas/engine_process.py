"""Engine processes: start by an executor, which may be a plugin's, exit and shutdown."""

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
# Delays after the first, the second and each further failure.
_BACKOFF_SECONDS = (1.0, 2.0, 4.0)
# Time for the exit after SIGKILL to be reported.
_REAP_SECONDS = 10.0
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT))
_CRASHES |= {signal.SIGINT}  # engines ignore it, but Python ends by it after a KeyboardInterrupt
"""Signals by which a process ends through its own fault."""
_LAST_SECONDS = 1.0
"""Time for a process whose connection has ended to exit by itself, with a telling status."""
_METHODS = ("poll", "terminate", "abort", "kill")


class FencedProcess:
    """Wrapper of an engine process whose methods do not raise.

    Attributes:
        pid: its process id.
        socket: the daemon's end of its stream socket.
    """

    def __init__(self, process: EngineProcess) -> None:
        """Validate what an executor has started.

        Raises:
            TypeError: it is not an engine process.
        """
        self.pid, self.socket = process.pid, process.socket
        # Checked at the start, where an error counts as a failed start of the engine.
        if not isinstance(self.pid, int) or not isinstance(self.socket, socket.socket):
            raise TypeError("the executor started something without pid and socket")
        missing = [name for name in _METHODS if not callable(getattr(process, name, None))]
        if missing:
            raise TypeError(f"the process of the executor has no {', '.join(missing)}")
        self._process = process

    def poll(self) -> int | None:
        """Its exit status; None while it runs, or if the status is unknown."""
        try:
            status = self._process.poll()
        except Exception as error:  # noqa: BLE001 - an executor may be a plugin's
            self._warn("poll", error)
            return None
        return status if isinstance(status, int) else None

    def terminate(self) -> None:
        """Ask it to stop, with SIGTERM."""
        self._signal("terminate")

    def abort(self) -> None:
        """Make it dump its stacks and exit, with SIGABRT."""
        self._signal("abort")

    def kill(self) -> None:
        """Kill it."""
        self._signal("kill")

    def _signal(self, method: str) -> None:
        try:
            getattr(self._process, method)()
        except Exception as error:  # noqa: BLE001 - an executor may be a plugin's
            self._warn(method, error)

    def _warn(self, method: str, error: Exception) -> None:
        _log.error("executor call %s failed for process %d: %r", method, self.pid, error)


def start(executor: ExecutorStrategy, command: EngineCommand) -> FencedProcess:
    """Start an engine process.

    Raises:
        Exception: any error of the executor, or of the process that it returns.
    """
    return FencedProcess(executor.start(command))


def has_crashed(status: int | None) -> bool:
    """Whether a process exited by itself, or by a signal that its own fault causes."""
    # SIGTERM and SIGKILL come from outside (the OOM killer for example): no strategy is to blame.
    return status is not None and (status >= 0 or -status in _CRASHES)


class ProcessExit(Enum):
    """State of an engine when its process is to end."""

    LOADING = "loading"
    ASKED = "asked"
    HUNG = "hung"
    LOST = "lost"


async def end_process(
    process: FencedProcess, patience: SilenceLimits, ending: ProcessExit, more_seconds: float = 0.0
) -> int | None:
    """End an engine process and wait for its exit.

    Args:
        process: the process.
        patience: timeouts.
        ending: state of the engine.
        more_seconds: additional time for an engine that was asked to stop.

    Returns:
        Its exit status; None if it does not exit.
    """
    # SIGABRT makes faulthandler dump the stacks, see `ENGINE_ENV`.
    if ending is ProcessExit.HUNG:
        process.abort()
        await wait_exit(process, patience.dump_seconds)
    elif ending is ProcessExit.LOST:
        await wait_exit(process, _LAST_SECONDS)
    else:
        stop_seconds = patience.stop_seconds + more_seconds
        # `Shutdown` first, then SIGTERM, then SIGKILL; a loading engine reads no commands.
        if ending is ProcessExit.LOADING or await wait_exit(process, stop_seconds) is None:
            process.terminate()
        await wait_exit(process, patience.stop_seconds)
    if process.poll() is None:
        process.kill()
    return await wait_exit(process, _REAP_SECONDS)


async def wait_exit(process: FencedProcess, seconds: float) -> int | None:
    """Wait for the exit status; None after the timeout."""
    deadline = time.monotonic() + seconds
    while (status := process.poll()) is None and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.005)  # an executor offers no event: its process may be remote
    return status


def backoff(failures: int) -> float:
    """Seconds before the next start: 0 after an engine that served."""
    if not failures:
        return 0.0
    base = _BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS)) - 1]
    # Jitter, so that replicas that fail together do not start together.
    return base * random.uniform(0.75, 1.25)


def describe_exit(status: int | None) -> str:
    """Describe how a process ended."""
    if status is None:
        return "it does not exit"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"
