"""Starts engines as child processes that never outlive the daemon.

Two mechanisms end an orphan. Its socket reaches end of file when the daemon's descriptors are
closed, which an engine notices between two steps. On Linux the kernel also kills it, in any state,
when the thread that started it ends; ``parent_death_signal`` requests that in the child.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

from gatewayd_hooks.execution import EngineCommand
from gatewayd_hooks.helpers import children

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


# A path, not a module, so that the child does not import the package.
_LAUNCHER = os.path.join(os.path.dirname(__file__), "parent_death_signal.py")


class LocalProcess:
    """Child process and the daemon's end of its socket."""

    def __init__(self, child: subprocess.Popen[bytes], stream: socket.socket) -> None:
        self._child = child
        self.socket = stream

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        return self._child.poll()

    def terminate(self) -> None:
        """Ask it to stop."""
        self._child.terminate()

    def abort(self) -> None:
        """Make it dump its stacks and die."""
        self._child.send_signal(signal.SIGABRT)

    def kill(self) -> None:
        """Stop it immediately."""
        self._child.kill()


class Local:
    """Starts child processes."""

    def open(self, resources: GatewayResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: the caller of ``start`` ends engines."""

    def start(self, command: EngineCommand) -> LocalProcess:
        """Start one engine."""
        ours, theirs = socket.socketpair()
        try:
            # Closed here once the child has it: otherwise the daemon would never read end of file
            # when the engine ends.
            with theirs:
                child = self._spawn(command, theirs.fileno())
        except BaseException:
            ours.close()
            raise
        return LocalProcess(child, ours)

    def _spawn(self, command: EngineCommand, fd: int) -> subprocess.Popen[bytes]:
        argv = [part.replace("{fd}", str(fd)) for part in command.argv]
        # In the child it would be too late to report a missing program.
        program, *_ = children.found(argv, command.env)
        return children.start(
            # Isolated and without `site`: the launcher needs none of the installed packages, and
            # starts sooner.
            children.python("-I", "-S", _LAUNCHER, str(os.getpid()), program, *argv),
            env=command.env,
            stdin=subprocess.DEVNULL,
            pass_fds=[fd],
            # Ctrl-C in the terminal is for the daemon alone.
            start_new_session=True,
        )
