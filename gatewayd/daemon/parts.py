"""Parts of a daemon, as data."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from gatewayd.admin.server import AdminServer
from gatewayd.admin.watchers import SnapshotBroadcast
from gatewayd.catalogue.model_residency import ModelResidency
from gatewayd.catalogue.route import ModelRoute
from gatewayd.config.tables import Config
from gatewayd.daemon.banner import ReadyMessage
from gatewayd.daemon.deployments import Deployments
from gatewayd.daemon.fleets import Fleets
from gatewayd.daemon.models import ModelParts
from gatewayd.daemon.reload import Reloading
from gatewayd.daemon.resources import PersistentResources
from gatewayd.daemon.systemd.notifier import ServiceNotifier
from gatewayd.daemon.systemd.watchdog import LivenessProgress
from gatewayd.daemon.upstreams import UpstreamParts
from gatewayd.http.server.listener import HttpServer
from gatewayd.hub.local_models import LocalModels
from gatewayd.plugins.loaded import LoadedPlugins
from gatewayd.tracing.log_buffer import LogLines


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
        watching: streams of snapshots, one for each model.
    """

    server: AdminServer
    watching: Sequence[SnapshotBroadcast]


@dataclass(frozen=True, kw_only=True)
class DaemonParts:
    """All parts of one daemon.

    Attributes:
        config: the effective configuration: the file with operators' changes.
        listening: sockets of the HTTP server.
        durable: the store with its services.
        models: parts of each model; the first serves requests that name none.
        plugged: plugins that all models share, from the first one of the start.
        upstreams: parts of each upstream.
        fleets: engines of all models and upstreams, started and stopped together.
        residency: loads and unloads models.
        routes: names that stand for several models.
        deployments: versions of models on trial.
        notifier, progress, reloading: integration with systemd.
        local_models: models of this machine, and their pulls.
        server: the HTTP server.
        admin: the admin API; None without an admin socket.
        lines: latest lines of the log.
        ready_message: message for a terminal.
    """

    config: Config
    listening: HttpListeners
    durable: PersistentResources
    models: Sequence[ModelParts]
    plugged: LoadedPlugins
    upstreams: Sequence[UpstreamParts]
    fleets: Fleets
    residency: ModelResidency
    routes: list[ModelRoute]
    deployments: Deployments
    notifier: ServiceNotifier
    progress: LivenessProgress
    reloading: Reloading
    local_models: LocalModels
    server: HttpServer
    admin: AdminParts | None
    lines: LogLines
    ready_message: ReadyMessage
