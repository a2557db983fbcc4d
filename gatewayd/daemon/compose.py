"""Composition root: builds a daemon's parts from its configuration.

The tokenizer is loaded first, then the port is bound, the store opened and the gateway's strategies
loaded. Nothing runs yet: ``run.py`` starts engines, tasks and signal handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gatewayd import __version__
from gatewayd.admin.app import build_admin
from gatewayd.admin.audit_log import AuditRecord
from gatewayd.admin.model_apps import AdminModels
from gatewayd.admin.operations import Operations, operation_routes
from gatewayd.admin.pinning import Pinning
from gatewayd.admin.plugins import plugin_routes
from gatewayd.admin.prefixes import PrefixRoutes, prefix_routes
from gatewayd.admin.server import AdminServer
from gatewayd.admin.snapshots.routes import PrefixRoute, snapshot_routes
from gatewayd.admin.snapshots.snapshot import STREAMED_SECONDS, Snapshots, Sources
from gatewayd.admin.watchers import SnapshotBroadcast
from gatewayd.catalogue.catalogue import Catalogue
from gatewayd.config.catalogue import ModelConfig, model_configs
from gatewayd.config.tables import Config
from gatewayd.daemon.banner import ReadyMessage
from gatewayd.daemon.models import ModelFiles, ModelParts, compose_model
from gatewayd.daemon.options import DaemonOptions, StartError
from gatewayd.daemon.parts import AdminParts, DaemonParts, HttpListeners
from gatewayd.daemon.reload import Reloading
from gatewayd.daemon.resources import PersistentResources
from gatewayd.daemon.routes import compose_routes
from gatewayd.daemon.systemd.descriptors import raise_file_limit
from gatewayd.daemon.systemd.notifier import ServiceNotifier
from gatewayd.daemon.systemd.watchdog import LivenessProgress
from gatewayd.http.app import build_app
from gatewayd.http.asgi import App
from gatewayd.http.server.listener import HttpServer, ListenError, is_loopback, listeners, url_of
from gatewayd.http.services import RequestLimits, Services
from gatewayd.hub.local_models import LocalModels
from gatewayd.metrics.registry import GatewayMetrics
from gatewayd.metrics.reloads import ReloadCollector
from gatewayd.metrics.store import StoreCollector
from gatewayd.metrics.tenants import LedgerCollector
from gatewayd.store.errors import StoreError
from gatewayd.tracing.log_buffer import LogLines
from gatewayd.tracing.recent import RecentLatencyRecords
from gatewayd_hooks.host.loading import PluginError


def compose(config: Config, options: DaemonOptions, drain: Callable[[str], None]) -> DaemonParts:
    """Bind the port and build all parts of a daemon.

    Args:
        config: configuration of the file.
        options: environment of the daemon.
        drain: drains and stops the daemon, for requests at the admin socket.

    Raises:
        StartError: the port, the model's folder, the store or a strategy cannot be used.
    """
    try:
        # What can fail without cleanup comes first: nothing else is open yet.
        # Once: a pull may change what a name means while the daemon starts.
        models = [(model, ModelFiles.find(model.config)) for model in model_configs(config)]
        bound, is_held = listeners(config.server.host, config.server.port)
    except (OSError, ValueError, ListenError) as error:
        raise StartError(str(error)) from error
    listening = HttpListeners(listeners=bound, is_held=is_held, url=url_of(bound[0]))
    raise_file_limit(config.server.connections)
    try:
        durable = PersistentResources(config)
        try:
            return _compose_with_store(config, options, drain, listening, models, durable)
        except BaseException:
            durable.close()
            raise
    except (PluginError, ListenError, StoreError) as error:
        listening.close()
        raise StartError(str(error)) from error


def _compose_with_store(
    config: Config,
    options: DaemonOptions,
    drain: Callable[[str], None],
    listening: HttpListeners,
    found: Sequence[tuple[ModelConfig, ModelFiles]],
    durable: PersistentResources,
) -> DaemonParts:
    archive = durable.archive
    recent = RecentLatencyRecords(keep=archive.add, keep_refused=archive.refuse)
    metrics = GatewayMetrics(__version__, recent=recent)
    models = _compose_models(found, options, durable, metrics)
    routes = compose_routes(config, models, metrics.routes)
    first = models[0]
    plugged, control = first.plugged, first.control
    # Reports the stored quotas at once, so that engines have them before the first step.
    for model in models:
        durable.tenancy.directory.watch_quotas(model.fleet.set_quotas)
    plugged.metrics(metrics.registry)
    metrics.registry.register(StoreCollector(durable.room, durable.tenancy))
    metrics.registry.register(LedgerCollector(durable.tenancy.ledger))
    fleets = [model.fleet for model in models]
    progress = LivenessProgress(
        lambda: [problem for fleet in fleets for problem in fleet.problems()],
        durable.database.wait_idle,
    )
    notifier = ServiceNotifier([(model.name, model.fleet) for model in models], progress)
    controls = {model.key: model.control for model in models}
    reloading = Reloading(options.reload, controls, config.routes, notifier)
    metrics.registry.register(ReloadCollector(reloading.outcomes))
    local_models = LocalModels([files.source for _, files in found])
    key = control.config.server.api_key
    secret = None if key is None else key.get_secret_value()
    services = Services(
        target=first.target,
        catalogue=Catalogue([model.target for model in models], routes),
        metrics=metrics,
        version=__version__,
        api_key=secret,
        allowed_origins=tuple(config.server.allowed_origins),
        # Without a key, a web page could reach a loopback port by DNS rebinding.
        only_local_hosts=key is None and all(map(is_loopback, listening.listeners)),
        limits=RequestLimits(
            body_bytes=int(config.server.body_bytes), bodies_bytes=int(config.server.bodies_bytes)
        ),
        observers=plugged.observers,
        protocols=plugged.protocols,
        durable=durable,
        local_models=local_models,
    )
    lines = LogLines([] if secret is None else [secret])
    sources_of = partial(
        Sources,
        url=listening.url,
        models=tuple([model.name for model in models]),
        registry=metrics.registry,
        recent=recent,
        tenancy=durable.tenancy,
        lines=lines,
    )
    return DaemonParts(
        config=control.config,
        listening=listening,
        durable=durable,
        models=models,
        routes=routes,
        notifier=notifier,
        progress=progress,
        reloading=reloading,
        local_models=local_models,
        server=HttpServer(build_app(services), metrics.answered, config.server),
        admin=_build_admin(config, sources_of, models, durable, drain),
        lines=lines,
        ready_message=ReadyMessage(
            model=first.name,
            url=listening.url,
            can_chat=first.target.text.template is not None,
            needs_key=key is not None,
        ),
    )


def _compose_models(
    found: Sequence[tuple[ModelConfig, ModelFiles]],
    options: DaemonOptions,
    durable: PersistentResources,
    metrics: GatewayMetrics,
) -> list[ModelParts]:
    models: list[ModelParts] = []
    try:
        for model, files in found:
            changes = durable.overrides
            models.append(
                compose_model(
                    model,
                    files,
                    options,
                    changes if model.name is None else changes.of_model(model.name),
                    metrics,
                    is_first=not models,
                )
            )
    except BaseException:
        for made in models:
            made.plugged.close()
        raise
    return models


def _build_admin(
    config: Config,
    sources_of: Callable[..., Sources],
    models: Sequence[ModelParts],
    durable: PersistentResources,
    drain: Callable[[str], None],
) -> AdminParts | None:
    if config.admin.socket is None:
        return None
    apps: dict[str, App] = {}
    watching = []
    for model in models:
        apps[model.name], snapshots = _build_model_admin(sources_of, model, durable, drain)
        watching.append(snapshots)
    app = AdminModels(apps)
    return AdminParts(server=AdminServer(app, config.admin.socket), watching=watching)


def _build_model_admin(
    sources_of: Callable[..., Sources],
    model: ModelParts,
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
        ],
        live,
        durable.archive,
    )
    return app, watching
