"""What a daemon is made of, and what it is made from, as data."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gatewayd.admin.control import Control
from gatewayd.admin.server import AdminServer
from gatewayd.admin.watchers import SnapshotBroadcast
from gatewayd.config.tables import Config
from gatewayd.daemon.banner import Welcome
from gatewayd.daemon.reload import Reloading
from gatewayd.daemon.resources import Durable
from gatewayd.daemon.systemd.notifier import Manager
from gatewayd.daemon.systemd.watchdog import LivenessProgress
from gatewayd.engines.fleet import EngineFleet
from gatewayd.engines.grammar_checks.checks import GuideChecks
from gatewayd.engines.replicas import launch
from gatewayd.http.server.listener import HttpServer
from gatewayd.plugins.loaded import Plugged
from gatewayd.text.text_model import TextModel
from gatewayd.tracing.log_buffer import LogLines


class StartError(Exception):
    """The daemon cannot start; the sentence is for the operator."""


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """What surrounds the configuration.

    Attributes:
        reload: reads the configuration again, for SIGHUP.
        command: how an engine is started.
        env: environment variables that engines get besides those that are passed on.
    """

    reload: Callable[[], Config]
    command: Sequence[str] = launch.ENGINE_COMMAND
    env: Mapping[str, str] = field(default_factory=lambda: dict(launch.ENGINE_ENV))


@dataclass(frozen=True, kw_only=True)
class Door:
    """Where requests come in.

    Attributes:
        listeners: bound sockets.
        is_held: whether systemd holds them, and keeps what comes while no daemon runs.
        url: of the first.
    """

    listeners: list[socket.socket]
    is_held: bool
    url: str

    def close(self) -> None:
        """Let go of what cannot be served."""
        for listener in self.listeners:
            listener.close()


@dataclass(frozen=True, kw_only=True)
class AdminDesk:
    """Where operators come in.

    Attributes:
        server: of the admin socket.
        watching: who watches, and the snapshots that they are sent.
    """

    server: AdminServer
    watching: SnapshotBroadcast


@dataclass(frozen=True, kw_only=True)
class DaemonParts:
    """Of one daemon.

    Attributes:
        config: in effect: the file's, and what operators changed.
        door: the port.
        text: template, tokenizer and their limits.
        durable: the store and what is kept in it.
        plugged: strategies and observers of this process.
        fleet: the engines.
        control: what changes while it serves.
        manager, progress, reloading: its life under systemd.
        guides: checks grammars before engines do.
        server: of HTTP.
        desk: None without an admin socket.
        lines: the latest of the log.
        welcome: what a person at a terminal is told.
    """

    config: Config
    door: Door
    text: TextModel
    durable: Durable
    plugged: Plugged
    fleet: EngineFleet
    control: Control
    manager: Manager
    progress: LivenessProgress
    reloading: Reloading
    guides: GuideChecks
    server: HttpServer
    desk: AdminDesk | None
    lines: LogLines
    welcome: Welcome
