"""Admin API of a daemon: an app for each model behind one socket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from starlette.routing import Route

from gatewayd.admin.app import build_admin
from gatewayd.admin.audit_log import AuditRecord
from gatewayd.admin.models import AdminModels, ModelList
from gatewayd.admin.operations import Operations, operation_routes
from gatewayd.admin.pinning import Pinning
from gatewayd.admin.plugins import plugin_routes
from gatewayd.admin.prefixes import PrefixRoutes, prefix_routes
from gatewayd.admin.server import AdminServer
from gatewayd.admin.snapshots.routes import PrefixRoute, snapshot_routes
from gatewayd.admin.snapshots.snapshot import STREAMED_SECONDS, Snapshots, Sources
from gatewayd.admin.watchers import SnapshotBroadcast
from gatewayd.config.tables import Config
from gatewayd.daemon.deployment_routes import DeploymentRoutes
from gatewayd.daemon.deployments import Deployments
from gatewayd.daemon.model_change_routes import ModelChangeRoutes
from gatewayd.daemon.models import ModelParts
from gatewayd.daemon.parts import AdminParts
from gatewayd.daemon.resources import PersistentResources
from gatewayd.daemon.served_models import ServedModels
from gatewayd.http.asgi import App


def compose_admin(
    config: Config,
    sources_of: Callable[..., Sources],
    models: Sequence[ModelParts],
    served: ServedModels,
    deployments: Deployments,
    listing: ModelList,
    durable: PersistentResources,
    drain: Callable[[str], None],
) -> AdminParts | None:
    """Build the admin API, with an app for each model; None without a socket for it.

    Args:
        config: of the daemon.
        sources_of: makes the sources of a model's snapshots.
        models: parts of each model.
        served: adds and removes models, and their apps with them.
        deployments: versions of models on trial.
        listing: lists the models.
        durable: the store with its services.
        drain: drains and stops the daemon, for requests at the admin socket.

    Raises:
        ListenError: the socket cannot be used.
    """
    if config.admin.socket is None:
        return None
    record = AuditRecord(durable.tenancy)
    changes, versions = ModelChangeRoutes(served, record), DeploymentRoutes(deployments, record)
    more = [*listing.routes, *changes.routes, *versions.routes]

    def admin_of(model: ModelParts) -> tuple[App, SnapshotBroadcast]:
        return _app_of(sources_of, model, more, durable, drain)

    apps: dict[str, App] = {}
    for model in models:
        apps[model.name], snapshots = admin_of(model)
        served.watching.append(snapshots)
    live = {model.name: model.target.live for model in models}
    served.admin, served.admin_of = AdminModels(apps, live), admin_of
    server = AdminServer(served.admin, config.admin.socket)
    return AdminParts(server=server, watching=served.watching)


def _app_of(
    sources_of: Callable[..., Sources],
    model: ModelParts,
    more: Sequence[Route],
    durable: PersistentResources,
    drain: Callable[[str], None],
) -> tuple[App, SnapshotBroadcast]:
    fleet, control, live, text = model.fleet, model.control, model.target.live, model.target.text
    sources = sources_of(model=model.name, fleet=fleet, control=control, live=live)
    snapshots = Snapshots(sources)
    watching = SnapshotBroadcast(partial(snapshots.build, STREAMED_SECONDS))
    record = AuditRecord(durable.tenancy)
    operations = Operations(live, fleet, control, model.name, drain, record)
    prefixes = PrefixRoute(fleet.inspection, text.tokenizer.decode)
    app = build_admin(
        control,
        Pinning(text, fleet),
        sources.recent,
        durable.tenancy,
        [
            *snapshot_routes(snapshots, watching, sources.lines, prefixes),
            *operation_routes(operations),
            *prefix_routes(PrefixRoutes(fleet, record)),
            *plugin_routes(control),
            *more,
        ],
        live,
        durable.archive,
    )
    return app, watching
