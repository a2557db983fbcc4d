"""Composition root: builds a daemon's parts from its configuration.

The tokenizer is loaded first, then the port is bound, the store opened and the gateway's strategies
loaded. Nothing runs yet: ``run.py`` starts engines, tasks and signal handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial

from gatewayd import __version__
from gatewayd.admin.models import ModelList
from gatewayd.admin.snapshots.snapshot import Sources
from gatewayd.catalogue.catalogue import Catalogue
from gatewayd.catalogue.memory_budget import BudgetExceeded
from gatewayd.catalogue.residency_metrics import ResidencyCollector
from gatewayd.config.catalogue import ModelConfig, check_names, model_configs, stated_names
from gatewayd.config.tables import Config
from gatewayd.daemon.admin import compose_admin
from gatewayd.daemon.banner import ReadyMessage
from gatewayd.daemon.deployments import Deployments
from gatewayd.daemon.fleets import Fleets
from gatewayd.daemon.models import ModelParts, ServedFiles, build_model, compose_models
from gatewayd.daemon.options import DaemonOptions, StartError
from gatewayd.daemon.parts import DaemonParts, HttpListeners
from gatewayd.daemon.reload import Reloading
from gatewayd.daemon.residency import compose_residency
from gatewayd.daemon.resources import PersistentResources
from gatewayd.daemon.routes import close_routes, compose_routes
from gatewayd.daemon.served_models import ServedModels
from gatewayd.daemon.systemd.descriptors import raise_file_limit
from gatewayd.daemon.systemd.notifier import ServiceNotifier
from gatewayd.daemon.systemd.watchdog import LivenessProgress
from gatewayd.daemon.upstreams import compose_upstreams
from gatewayd.engines.replicas.launch import served_name
from gatewayd.http.app import build_app
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
from gatewayd_engine.process.messages import TenantQuota
from gatewayd_hooks.host.loading import PluginError


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
        files = {model.name: _files_of(model) for model in models}
        # Only now: without `served_name` the name of `[model]` comes from its files.
        is_found = isinstance(files.get(None), ServedFiles)
        own = served_name(models[0].config) if is_found else None
        check_names(models, config, own)
        bound, is_held = listeners(config.server.host, config.server.port)
    except (OSError, ValueError, ListenError) as error:
        raise StartError(str(error)) from error
    listening = HttpListeners(listeners=bound, is_held=is_held, url=url_of(bound[0]))
    raise_file_limit(config.server.connections)
    # Closes what is open if a later part cannot be built.
    with ExitStack() as undo:
        undo.callback(listening.close)
        try:
            durable = PersistentResources(config)
            undo.callback(durable.close)
            parts = _compose_with_store(config, options, drain, listening, files, durable, undo)
        except (PluginError, ListenError, StoreError, BudgetExceeded) as error:
            raise StartError(str(error)) from error
        undo.pop_all()
        return parts


def _files_of(model: ModelConfig) -> ServedFiles | Exception:
    """Find the files of a model; the error if it has none: a version of it may be promoted."""
    try:
        return ServedFiles.find(model.config)
    except (OSError, ValueError) as error:
        return error


def _found(
    files: Mapping[str | None, ServedFiles | Exception], file: Config, config: Config
) -> dict[str | None, ServedFiles]:
    """Return the files that were found.

    Raises:
        StartError: those of a model that is to be served were not.
    """
    stated = {model.name: model.config.model.path for model in model_configs(file)}
    wanted = {model.name: model.config.model.path for model in model_configs(config)}
    for name, found in files.items():
        # Without an operator's change there is nothing else to serve under its name.
        if isinstance(found, Exception) and name in wanted and wanted[name] == stated[name]:
            raise StartError(str(found)) from found
    return {name: found for name, found in files.items() if isinstance(found, ServedFiles)}


def _close_plugins(models: Iterable[ModelParts]) -> None:
    for model in models:
        model.plugged.close()


def _compose_with_store(
    file: Config,
    options: DaemonOptions,
    drain: Callable[[str], None],
    listening: HttpListeners,
    files: Mapping[str | None, ServedFiles | Exception],
    durable: PersistentResources,
    undo: ExitStack,
) -> DaemonParts:
    config = durable.added_models.apply(file)
    archive = durable.archive
    recent = RecentLatencyRecords(keep=archive.add, keep_refused=archive.refuse)
    metrics = GatewayMetrics(__version__, recent=recent)
    build = partial(build_model, options, durable.overrides, metrics)
    models: list[ModelParts] = []
    undo.callback(_close_plugins, models)
    sources = compose_models(config, _found(files, file, config), build, models)
    if not models:
        raise StartError("no model can be served; the errors above say why")
    local_models = LocalModels(sources)
    first = models[0]
    residency = compose_residency(config, models)
    undo.callback(residency.close)
    plugged, control = first.plugged, first.control

    def set_quotas(quotas: list[TenantQuota]) -> None:
        for model in models:
            model.fleet.set_quotas(quotas)

    # Reports the stored quotas at once, so that engines have them before the first step.
    durable.tenancy.directory.watch_quotas(set_quotas)
    plugged.metrics(metrics.registry)
    metrics.registry.register(StoreCollector(durable.room, durable.tenancy))
    metrics.registry.register(LedgerCollector(durable.tenancy.ledger))
    upstreams = compose_upstreams(file, plugged.host, metrics, undo)
    progress = LivenessProgress(
        lambda: [problem for model in models for problem in model.fleet.problems()],
        durable.database.wait_idle,
    )
    notifier = ServiceNotifier(lambda: [(model.name, model.fleet) for model in models], progress)
    targets = [
        *[model.target for model in models],
        *[target for upstream in upstreams for target in upstream.targets],
    ]
    stated = [name for one in (file, config) for name in stated_names(one)]
    routes = compose_routes(config, targets, stated, plugged, metrics.routes)
    undo.callback(close_routes, routes)
    catalogue = Catalogue(targets, routes)
    ending: list[ModelParts] = []
    fleets = Fleets(models, residency, upstreams, ending)

    def on_added(model: ModelParts) -> Callable[[], object]:
        model.fleet.set_quotas(durable.tenancy.directory.quotas)
        fleets.watch(model)
        return partial(fleets.unwatch, model)

    served = ServedModels(
        models,
        catalogue,
        residency,
        durable.added_models,
        build,
        local_models,
        on_added,
        ending,
        config=config,
        file=file,
    )
    reloading = Reloading(options.reload, models, served, config.routes, config.upstreams, notifier)
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
    deployments = Deployments(
        served, catalogue, plugged, metrics.routes, durable.deployments, services.of
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
        plugged=plugged,
        routes=routes,
        deployments=deployments,
        upstreams=upstreams,
        fleets=fleets,
        residency=residency,
        notifier=notifier,
        progress=progress,
        reloading=reloading,
        local_models=local_models,
        server=HttpServer(build_app(services), metrics.answered, config.server),
        admin=compose_admin(
            config,
            sources_of,
            models,
            served,
            deployments,
            ModelList(residency, catalogue),
            durable,
            drain,
        ),
        lines=lines,
        ready_message=ReadyMessage(
            model=first.name,
            url=listening.url,
            can_chat=first.target.text.template is not None,
            needs_key=key is not None,
        ),
    )
