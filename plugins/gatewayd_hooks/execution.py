"""Executors: where an engine process runs."""

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
    """How to start one engine.

    Attributes:
        argv: the command; ``{fd}`` in an argument stands for the socket's descriptor there.
        env: its environment, whole. Add nothing of the daemon's own, which has the operator's key.
        replica: the replica's number.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    replica: int


class EngineProcess(Protocol):
    """A started engine."""

    @property
    def pid(self) -> int:
        """Its process id (on its machine)."""

    @property
    def socket(self) -> socket.socket:
        """Our end of its stream socket; the caller closes it."""

    def poll(self) -> int | None:
        """Its exit status (negative: the signal), or None while it lives."""

    def terminate(self) -> None:
        """Ask it to stop (SIGTERM). No error when it is gone."""

    def abort(self) -> None:
        """Make a hung one write its stacks and die (SIGABRT). No error when it is gone."""

    def kill(self) -> None:
        """Stop it now (SIGKILL). No error when it is gone."""


class ExecutorStrategy(Strategy, Protocol):
    """Starts engines."""

    def open(self, resources: GatewayResources) -> None:
        """Learn the number of replicas."""

    def start(self, command: EngineCommand) -> EngineProcess:
        """Start one engine with a connected stream socket.

        Must not leave a process behind when it raises; the engine must end when the daemon does,
        however the daemon ends. Its working folder must not be the daemon's, where anybody's files
        may be, and it must have no descriptor but its socket and the three standard ones.

        Raises:
            OSError: it could not be started.
        """
