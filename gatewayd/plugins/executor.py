"""Executor strategy guarded by a watchdog."""

from __future__ import annotations

from gatewayd_hooks.execution import EngineCommand, EngineProcess, ExecutorStrategy
from gatewayd_hooks.host.ledger import Ledger
from gatewayd_hooks.host.watchdog import Watchdog
from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.strategy import Kind

_START_SECONDS = 10.0


class GuardedExecutor:
    """An executor whose calls are timed, and interrupted if they do not return.

    Args:
        executor: opened and closed through this object.
        name: name of the strategy.
        ledger: accounts its calls.
        watchdog: interrupts calls that hang.
    """

    def __init__(
        self, executor: ExecutorStrategy, name: str, ledger: Ledger, watchdog: Watchdog
    ) -> None:
        self._watched = ledger.watch(Kind.EXECUTOR, name, executor)
        self._watchdog = watchdog

    def open(self, resources: GatewayResources) -> None:
        """See ``ExecutorStrategy``."""
        self._watched.open(resources)

    def close(self) -> None:
        """See ``ExecutorStrategy``."""
        self._watched.close()

    def start(self, command: EngineCommand) -> EngineProcess:
        """See ``ExecutorStrategy``."""
        self._watchdog.arm(_START_SECONDS)
        try:
            process: EngineProcess = self._watched.start(command)
            return process
        finally:
            self._watchdog.disarm()
