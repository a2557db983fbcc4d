"""Executors: start engine processes, locally or elsewhere."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """Command line and environment of one engine.

    Attributes:
        argv: the command; ``{fd}`` in an argument is replaced by the file descriptor of the socket
            in the engine process.
        env: the complete environment. Do not add the daemon's own variables, which include the
            operator's key.
        replica: the replica's number.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    replica: int


class EngineProcess(Protocol):
    """Started engine process."""

    @property
    def pid(self) -> int:
        """Process id, on the machine where it runs."""

    @property
    def socket(self) -> socket.socket:
        """The daemon's end of the stream socket to the engine; the caller closes it."""

    def poll(self) -> int | None:
        """Return the exit status (negative: the signal), or None while it runs."""

    def terminate(self) -> None:
        """Ask it to stop (SIGTERM). No error if it has exited."""

    def abort(self) -> None:
        """Make a hung process dump its stacks and die (SIGABRT). No error if it has exited."""

    def kill(self) -> None:
        """Stop it immediately (SIGKILL). No error if it has exited."""


class ExecutorStrategy(Strategy, Protocol):
    """Starts engines."""

    def open(self, resources: GatewayResources) -> None:
        """Read the number of replicas."""

    def start(self, command: EngineCommand) -> EngineProcess:
        """Start one engine with a connected stream socket.

        Must not leave a process behind when it raises; the engine must exit when the daemon does,
        however the daemon exits. The engine's working directory must not be the daemon's, which may
        contain files of other users, and it must inherit no file descriptors except its socket and
        the three standard ones.

        Raises:
            OSError: it could not be started.
        """
