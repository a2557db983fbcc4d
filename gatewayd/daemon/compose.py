"""Composition root: builds a daemon's parts from its configuration.

The tokenizer is loaded first, then the port is bound, the store opened and the gateway's strategies
loaded. Nothing runs yet: ``run.py`` starts engines, tasks and signal handlers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gatewayd import __version__
from gatewayd.admin.app import build_admin
from gatewayd.admin.audit_log import AuditRecord
from gatewayd.admin.control import Control
from gatewayd.admin.operations import Operations, operation_routes
from gatewayd.admin.pinning import Pinning
from gatewayd.admin.plugins import plugin_routes
from gatewayd.admin.prefixes import PrefixRoutes, prefix_routes
from gatewayd.admin.server import AdminServer
from gatewayd.admin.snapshots.routes import PrefixRoute, snapshot_routes
from gatewayd.admin.snapshots.snapshot import STREAMED_SECONDS, Snapshots, Sources
from gatewayd.admin.watchers import SnapshotBroadcast
from gatewayd.config.tables import Config
from gatewayd.daemon.banner import ReadyMessage
from gatewayd.daemon.parts import AdminParts, DaemonOptions, DaemonParts, HttpListeners, StartError
from gatewayd.daemon.reload import Reloading
from gatewayd.daemon.resources import PersistentResources
from gatewayd.daemon.systemd.descriptors import raise_file_limit
from gatewayd.daemon.systemd.notifier import ServiceNotifier
from gatewayd.daemon.systemd.watchdog import LivenessProgress
from gatewayd.engines.fleet import EngineFleet
from gatewayd.engines.grammar_checks.checks import GuideChecks
from gatewayd.engines.replicas import launch
from gatewayd.engines.replicas.setup import Launch
from gatewayd.http.app import build_app
from gatewayd.http.server.listener import HttpServer, ListenError, is_loopback, listeners, url_of
from gatewayd.http.services import RequestLimits, Services
from gatewayd.hub.local_models import LocalModels
from gatewayd.metrics.registry import Metrics
from gatewayd.metrics.reloads import ReloadCollector
from gatewayd.metrics.store import StoreCollector
from gatewayd.metrics.tenants import LedgerCollector
from gatewayd.pipeline.generation import Generation
from gatewayd.pipeline.live_requests import LiveRequests
from gatewayd.plugins.loaded import LoadedPlugins, check_strategies
from gatewayd.store.errors import StoreError
from gatewayd.text.text_model import TextModel
from gatewayd.tracing.log_buffer import LogLines
from gatewayd.tracing.recent import RecentLatencyRecords
from gatewayd_hooks.host.loading import PluginError

_log = logging.getLogger("gatewayd.daemon")


@dataclass(frozen=True, slots=True)
class _Model:
    """The served model.

    Attributes:
        source: folder or GGUF file.
        folder: of the checkpoint, which is made of a GGUF file.
        context_len: in tokens.
        text: its tokenizer and template.
    """

    source: Path
    folder: Path
    context_len: int
    text: TextModel

    @classmethod
    def find(cls, config: Config) -> _Model:
        """Find the configured model.

        Raises:
            OSError, ValueError: it cannot be served.
        """
        source = launch.model_source(config)
        folder = launch.folder_of(source)
        context_len = launch.checked_context_len(config, folder)
        return cls(source, folder, context_len, TextModel.from_folder(folder))


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
        model = _Model.find(config)
        bound, is_held = listeners(config.server.host, config.server.port)
    except (OSError, ValueError, ListenError) as error:
        raise StartError(str(error)) from error
    listening = HttpListeners(listeners=bound, is_held=is_held, url=url_of(bound[0]))
    raise_file_limit(config.server.connections)
    try:
        durable = PersistentResources(config)
        try:
            return _compose_with_store(config, options, drain, listening, model, durable)
        except BaseException:
            durable.close()
            raise
    except (PluginError, ListenError, StoreError) as error:
        listening.close()
        raise StartError(str(error)) from error


def _compose_with_store(
    file: Config,
    options: DaemonOptions,
    drain: Callable[[str], None],
    listening: HttpListeners,
    model: _Model,
    durable: PersistentResources,
) -> DaemonParts:
    # Before anything is built: engines start with the operators' changes instead of being swapped.
    config = _in_effect(file, durable)
    text, folder = model.text, str(model.folder)
    name, template = launch.served_name(config), text.template
    plugged = LoadedPlugins.load(
        config, model=name, chat_template=template.source if template else ""
    )
    fleet = _engines(config, options, plugged, model.folder)
    control = Control(config, fleet, plugged, durable.overrides)
    archive, live = durable.archive, LiveRequests[Generation]()
    recent = RecentLatencyRecords(keep=archive.add, keep_refused=archive.refuse)
    # Reports the stored quotas at once, so that engines have them before the first step.
    durable.tenancy.directory.watch_quotas(fleet.set_quotas)
    metrics = Metrics(
        fleet,
        name,
        version=__version__,
        max_model_len=model.context_len,
        control=control,
        recent=recent,
        slo=config.slo,
        running=live.generated,
    )
    # Metrics read from the control and are called by it; the callback closes that cycle.
    control.on_slo_change = metrics.slo.set_targets
    plugged.metrics(metrics.registry)
    metrics.registry.register(StoreCollector(durable.room, durable.tenancy))
    metrics.registry.register(LedgerCollector(durable.tenancy.ledger))
    progress = LivenessProgress(fleet.problems, durable.database.wait_idle)
    notifier = ServiceNotifier(name, fleet, progress)
    reloading = Reloading(options.reload, control, notifier)
    metrics.registry.register(ReloadCollector(reloading.outcomes))
    # Read at each use, since a reload replaces the configuration.
    guides = GuideChecks(lambda: control.config.guide, folder, fleet)
    control.on_reload = guides.wake
    local_models = LocalModels(model.source)
    key = config.server.api_key
    secret = None if key is None else key.get_secret_value()
    services = Services(
        fleet=fleet,
        text=text,
        models=(name,),
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
        live=live,
        parsers=plugged.parsers,
        protocols=plugged.protocols,
        durable=durable,
        local_models=local_models,
        guides=guides,
        detector=lambda: control.detector,
    )
    lines = LogLines([] if secret is None else [secret])
    sources = Sources(
        url=listening.url,
        model=name,
        fleet=fleet,
        control=control,
        registry=metrics.registry,
        recent=recent,
        live=live,
        tenancy=durable.tenancy,
        lines=lines,
    )
    return DaemonParts(
        config=config,
        listening=listening,
        text=text,
        durable=durable,
        plugged=plugged,
        fleet=fleet,
        control=control,
        notifier=notifier,
        progress=progress,
        reloading=reloading,
        local_models=local_models,
        guides=guides,
        server=HttpServer(build_app(services), metrics.answered, config.server),
        admin=_build_admin(config, sources, text, durable, drain),
        lines=lines,
        ready_message=ReadyMessage(
            model=name, url=listening.url, can_chat=template is not None, needs_key=key is not None
        ),
    )


def _in_effect(file: Config, durable: PersistentResources) -> Config:
    """The configuration with operators' changes; the file alone if that is not valid."""
    overrides = durable.overrides
    # The base with which changes from now on are recorded.
    overrides.file = file
    config = overrides.apply(file)
    # A runtime choice may name a plugin that has been uninstalled. All changes are dropped then,
    # not only that one, so that what applies is the file alone (ADR 0027).
    if config is not file and (problems := check_strategies(config)):
        _log.error(
            "runtime changes not applied, using the configuration file: %s", "; ".join(problems)
        )
        overrides.clear()
        return file
    return config


def _engines(
    config: Config, options: DaemonOptions, plugged: LoadedPlugins, folder: Path
) -> EngineFleet:
    fleet = EngineFleet(
        Launch(
            executor=plugged.executor,
            command=tuple(options.command),
            env=launch.environment(config, options.env),
            config=launch.engine_config(config, folder),
            patience=launch.silence_limits(config),
        ),
        plugged.router,
        launch.queue_limits(config),
        config.engine.replicas,
        plugged.admission,
    )
    fleet.deadlines = launch.deadlines(config)
    return fleet


def _build_admin(
    config: Config,
    sources: Sources,
    text: TextModel,
    durable: PersistentResources,
    drain: Callable[[str], None],
) -> AdminParts | None:
    if config.admin.socket is None:
        return None
    fleet, control, live = sources.fleet, sources.control, sources.live
    snapshots = Snapshots(sources)
    watching = SnapshotBroadcast(partial(snapshots.build, STREAMED_SECONDS))
    record = AuditRecord(durable.tenancy)
    operations = Operations(live, fleet, control, sources.model, drain, record)
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
    return AdminParts(server=AdminServer(app, config.admin.socket), watching=watching)
