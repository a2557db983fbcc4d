"""Parts and options of a daemon, as data."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gatewayd.admin.control import Control
from gatewayd.admin.server import AdminServer
from gatewayd.admin.watchers import SnapshotBroadcast
from gatewayd.config.tables import Config
from gatewayd.daemon.banner import ReadyMessage
from gatewayd.daemon.reload import Reloading
from gatewayd.daemon.resources import PersistentResources
from gatewayd.daemon.systemd.notifier import ServiceNotifier
from gatewayd.daemon.systemd.watchdog import LivenessProgress
from gatewayd.engines.fleet import EngineFleet
from gatewayd.engines.grammar_checks.checks import GuideChecks
from gatewayd.engines.replicas import launch
from gatewayd.http.server.listener import HttpServer
from gatewayd.hub.local_models import LocalModels
from gatewayd.plugins.loaded import LoadedPlugins
from gatewayd.text.text_model import TextModel
from gatewayd.tracing.log_buffer import LogLines


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


@dataclass(frozen=True, kw_only=True)
class HttpListeners:
    """Listening sockets of the HTTP server.

    Attributes:
        listeners: bound sockets.
        is_held: whether systemd owns them, and queues connections while no daemon runs.
        url: URL of the first.
    """

    listeners: list[socket.socket]
    is_held: bool
    url: str

    def close(self) -> None:
        """Close the sockets."""
        for listener in self.listeners:
            listener.close()


@dataclass(frozen=True, kw_only=True)
class AdminParts:
    """Admin API of the daemon.

    Attributes:
        server: server of the admin socket.
        watching: streams of snapshots.
    """

    server: AdminServer
    watching: SnapshotBroadcast


@dataclass(frozen=True, kw_only=True)
class DaemonParts:
    """All parts of one daemon.

    Attributes:
        config: the effective configuration: the file with operators' changes.
        listening: sockets of the HTTP server.
        text: chat template, tokenizer and their limits.
        durable: the store with its services.
        plugged: strategies and observers of this process.
        fleet: the engines.
        control: changes of the running daemon.
        notifier, progress, reloading: integration with systemd.
        local_models: models of this machine, and their pulls.
        guides: grammar checks before engines.
        server: the HTTP server.
        admin: the admin API; None without an admin socket.
        lines: latest lines of the log.
        ready_message: message for a terminal.
    """

    config: Config
    listening: HttpListeners
    text: TextModel
    durable: PersistentResources
    plugged: LoadedPlugins
    fleet: EngineFleet
    control: Control
    notifier: ServiceNotifier
    progress: LivenessProgress
    reloading: Reloading
    local_models: LocalModels
    guides: GuideChecks
    server: HttpServer
    admin: AdminParts | None
    lines: LogLines
    ready_message: ReadyMessage
