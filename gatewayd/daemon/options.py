"""Environment of a daemon, and the error of one that cannot start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gatewayd.config.tables import Config
from gatewayd.engines.replicas import launch


class StartError(Exception):
    """The daemon cannot start; the message is for the operator."""


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """Environment of the daemon, in addition to its configuration.

    Attributes:
        reload: reads the configuration again, for SIGHUP.
        command: command that starts an engine.
        env: environment variables of engines, in addition to inherited ones.
    """

    reload: Callable[[], Config]
    command: Sequence[str] = launch.ENGINE_COMMAND
    env: Mapping[str, str] = field(default_factory=lambda: dict(launch.ENGINE_ENV))
