"""Fenced executor strategy, whose calls may fail but not hang."""

from __future__ import annotations

from gatewayd.plugins.fenced import Fenced
from gatewayd_hooks.execution import EngineCommand, EngineProcess, ExecutorStrategy
from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.strategy import Kind

_PROCESS_SECONDS = 10.0
"""Limit for starting an engine process, and for releasing what such processes used."""


class FencedExecutor(Fenced[ExecutorStrategy]):
    """An executor whose calls are timed, and interrupted if they do not return."""

    kind = Kind.EXECUTOR
    close_seconds = _PROCESS_SECONDS

    def open(self, resources: GatewayResources) -> None:
        """See ``ExecutorStrategy``."""
        self._watched.open(resources)

    def start(self, command: EngineCommand) -> EngineProcess:
        """See ``ExecutorStrategy``; its exceptions propagate."""
        with self._watchdog.armed(_PROCESS_SECONDS):
            process: EngineProcess = self._watched.start(command)
            return process
