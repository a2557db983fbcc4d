"""Composition root: builds a daemon's parts from its configuration.

The tokenizer is loaded first, then the port is bound, the store opened and the gateway's strategies
loaded. Nothing runs yet: ``run.py`` starts engines, tasks and signal handlers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from starlette.routing import Route

from gatewayd import __version__
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
from gatewayd.catalogue.catalogue import Catalogue
from gatewayd.catalogue.memory_budget import BudgetExceeded, CatalogueBudget
from gatewayd.catalogue.model_residency import ModelResidency, ResidencyLimits, demand_of
from gatewayd.catalogue.residency_metrics import ResidencyCollector
from gatewayd.config.catalogue import ModelConfig, check_names, model_configs
from gatewayd.config.tables import Config
from gatewayd.daemon.banner import ReadyMessage
from gatewayd.daemon.fleets import Fleets
from gatewayd.daemon.model_change_routes import ModelChangeRoutes
from gatewayd.daemon.models import ModelParts, ServedFiles, compose_model
from gatewayd.daemon.options import DaemonOptions, StartError
from gatewayd.daemon.parts import AdminParts, DaemonParts, HttpListeners
from gatewayd.daemon.reload import Reloading
from gatewayd.daemon.resources import PersistentResources
from gatewayd.daemon.routes import compose_routes
from gatewayd.daemon.served_models import ServedModels
from gatewayd.daemon.systemd.descriptors import raise_file_limit
from gatewayd.daemon.systemd.notifier import ServiceNotifier
from gatewayd.daemon.systemd.watchdog import LivenessProgress
from gatewayd.daemon.upstreams import compose_upstreams
from gatewayd.engines.replicas.launch import model_source, served_name
from gatewayd.http.app import build_app
from gatewayd.http.asgi import App
from gatewayd.http.server.listener import HttpServer, ListenError, is_loopback, listeners, url_of
from gatewayd.http.services import RequestLimits, Services
from gatewayd.hub.local_models import LocalModels
from gatewayd.metrics.registry import GatewayMetrics
from gatewayd.metrics.reloads import ReloadCollector
from gatewayd.metrics.store import StoreCollector
from gatewayd.metrics.tenants import LedgerCollector
from gatewayd.plugins.residency import FencedResidency
from gatewayd.store.errors import StoreError
from gatewayd.tracing.log_buffer import LogLines
from gatewayd.tracing.recent import RecentLatencyRecords
from gatewayd_engine.process.messages import TenantQuota
from gatewayd_hooks.host.loading import PluginError
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger("gatewayd.daemon")


def compose(config: Config, options: DaemonOptions, drain: Callable[[str], None]) -> DaemonParts:
    """Bind the port and build all parts of a daemon.

    Args:
        config: configuration of the file.
        options: environment of the daemon.
        drain: drains and stops the daemon, for requests at the admin socket.

    Raises:
        StartError: the port, a model's folder or name, the store or a strategy cannot be used.
    """
    try:
        # What can fail without cleanup comes first: nothing else is open yet.
        # Once: a pull may change what a name means while the daemon starts.
        models = model_configs(config)
        files = {model.name: ServedFiles.find(model.config) for model in models}
        # Only now: without `served_name` the name of `[model]` comes from its files.
        check_names(models, served_name(models[0].config) if models[0].name is None else None)
        bound, is_held = listeners(config.server.host, config.server.port)
    except (OSError, ValueError, ListenError) as error:
        raise StartError(str(error)) from error
    listening = HttpListeners(listeners=bound, is_held=is_held, url=url_of(bound[0]))
    raise_file_limit(config.server.connections)
    try:
        durable = PersistentResources(config)
        try:
            return _compose_with_store(config, options, drain, listening, files, durable)
        except BaseException:
            durable.close()
            raise
    except (PluginError, ListenError, StoreError, BudgetExceeded) as error:
        listening.close()
        raise StartError(str(error)) from error


def _compose_with_store(
    file: Config,
    options: DaemonOptions,
    drain: Callable[[str], None],
    listening: HttpListeners,
    files: Mapping[str | None, ServedFiles],
    durable: PersistentResources,
) -> DaemonParts:
    config = durable.added_models.apply(file)
    archive = durable.archive
    recent = RecentLatencyRecords(keep=archive.add, keep_refused=archive.refuse)
    metrics = GatewayMetrics(__version__, recent=recent)
    build = partial(_build_model, options, durable, metrics)
    models, sources = _compose_models(config, files, build)
    first = models[0]
    residency = _residency(config, models)
    plugged, control = first.plugged, first.control

    def set_quotas(quotas: list[TenantQuota]) -> None:
        for model in models:
            model.fleet.set_quotas(quotas)

    # Reports the stored quotas at once, so that engines have them before the first step.
    durable.tenancy.directory.watch_quotas(set_quotas)
    plugged.metrics(metrics.registry)
    metrics.registry.register(StoreCollector(durable.room, durable.tenancy))
    metrics.registry.register(LedgerCollector(durable.tenancy.ledger))
    upstreams = compose_upstreams(file, plugged.host, metrics)
    progress = LivenessProgress(
        lambda: [problem for model in models for problem in model.fleet.problems()],
        durable.database.wait_idle,
    )
    notifier = ServiceNotifier(lambda: [(model.name, model.fleet) for model in models], progress)
    targets = [
        *[model.target for model in models],
        *[target for upstream in upstreams for target in upstream.targets],
    ]
    routes = compose_routes(config, targets, plugged, metrics.routes)
    catalogue = Catalogue(targets, routes)
    local_models = LocalModels(sources)
    fleets = Fleets(models, residency, upstreams)

    def on_added(model: ModelParts) -> None:
        model.fleet.set_quotas(durable.tenancy.directory.quotas)
        fleets.watch(model)

    served = ServedModels(
        models,
        catalogue,
        residency,
        durable.added_models,
        build,
        local_models,
        on_added,
        config=config,
        file=file,
    )
    reloading = Reloading(options.reload, models, served, config.routes, notifier)
    metrics.registry.register(ReloadCollector(reloading.outcomes))
    metrics.registry.register(ResidencyCollector(residency))
    key = control.config.server.api_key
    secret = None if key is None else key.get_secret_value()
    services = Services(
        target=first.target,
        catalogue=catalogue,
        metrics=metrics,
        version=__version__,
        api_key=secret,
        allowed_origins=tuple(config.server.allowed_origins),
        # Without a key, a web page could reach a loopback port by DNS rebinding.
        only_local_hosts=key is None and all(map(is_loopback, listening.listeners)),
        limits=RequestLimits(
            wake_seconds=config.engine.load_seconds,
            body_bytes=int(config.server.body_bytes),
            bodies_bytes=int(config.server.bodies_bytes),
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
        models=lambda: [model.name for model in models],
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
        upstreams=upstreams,
        fleets=fleets,
        residency=residency,
        notifier=notifier,
        progress=progress,
        reloading=reloading,
        local_models=local_models,
        server=HttpServer(build_app(services), metrics.answered, config.server),
        admin=_build_admin(
            config, sources_of, models, served, ModelList(residency, catalogue), durable, drain
        ),
        lines=lines,
        ready_message=ReadyMessage(
            model=first.name,
            url=listening.url,
            can_chat=first.target.text.template is not None,
            needs_key=key is not None,
        ),
    )


def _build_model(
    options: DaemonOptions,
    durable: PersistentResources,
    metrics: GatewayMetrics,
    model: ModelConfig,
    files: ServedFiles,
    *,
    is_first: bool = False,
    is_alone: bool = False,
) -> ModelParts:
    changes = durable.overrides if model.name is None else durable.overrides.of_model(model.name)
    return compose_model(
        model, files, options, changes, metrics, is_first=is_first, is_alone=is_alone
    )


def _compose_models(
    config: Config, known: Mapping[str | None, ServedFiles], build: Callable[..., ModelParts]
) -> tuple[list[ModelParts], list[Path]]:
    """Build all models; one that an operator has added may be served no more, and is left out."""
    models: list[ModelParts] = []
    served: list[ModelConfig] = []
    sources = []
    try:
        configured = model_configs(config)
        for model in configured:
            try:
                # Those of the file are known and have names of their own.
                check_names([*served, model], models[0].name if models else None)
                files = known.get(model.name)
                # An operator may have removed one of the file and added another of its name.
                if files is None or files.source != model_source(model.config):
                    files = ServedFiles.find(model.config)
            except (OSError, ValueError) as error:
                _log.error("the added model %s is not served: %s", model.name, error)
                continue
            models.append(build(model, files, is_first=not models, is_alone=len(configured) == 1))
            served.append(model)
            sources.append(files.source)
    except BaseException:
        for made in models:
            made.plugged.close()
        raise
    return models, sources


def _residency(config: Config, models: Sequence[ModelParts]) -> ModelResidency:
    """Put all models under one budget; those that are loaded at their first request wait for it.

    Raises:
        BudgetExceeded: one can never be loaded.
        PluginError: the strategy cannot be loaded.
    """
    catalogue, plugged = config.catalogue, models[0].plugged
    name = config.residency.strategy
    strategy = plugged.host.strategy(Kind.RESIDENCY, name, config.residency.settings(name))
    strategy.open(plugged.resources)
    budget = CatalogueBudget(
        None if catalogue.memory is None else int(catalogue.memory),
        None if catalogue.device_memory is None else int(catalogue.device_memory),
    )
    residency = ModelResidency(
        ResidencyLimits(budget, catalogue.minimum_residency_seconds, catalogue.patience_seconds),
        FencedResidency(strategy, name, plugged.plugin_times, plugged.watchdog),
    )
    for model in sorted(models, key=lambda one: not one.managed.is_pinned):
        residency.add(model.managed)
        model.fleet.demand = demand_of(residency, model.managed)
    return residency


def _build_admin(
    config: Config,
    sources_of: Callable[..., Sources],
    models: Sequence[ModelParts],
    served: ServedModels,
    listing: ModelList,
    durable: PersistentResources,
    drain: Callable[[str], None],
) -> AdminParts | None:
    if config.admin.socket is None:
        return None
    changes = ModelChangeRoutes(served, AuditRecord(durable.tenancy))
    more = [*listing.routes, *changes.routes]

    def admin_of(model: ModelParts) -> tuple[App, SnapshotBroadcast]:
        return _build_model_admin(sources_of, model, more, durable, drain)

    apps: dict[str, App] = {}
    for model in models:
        apps[model.name], snapshots = admin_of(model)
        served.watching.append(snapshots)
    live = {model.name: model.target.live for model in models}
    served.admin, served.admin_of = AdminModels(apps, live), admin_of
    server = AdminServer(served.admin, config.admin.socket)
    return AdminParts(server=server, watching=served.watching)


def _build_model_admin(
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
