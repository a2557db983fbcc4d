"""Parts of a daemon that each model has for itself: engines, strategies, text and control."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gatewayd.admin.control import Control
from gatewayd.admin.overrides.persisted_overrides import Overrides
from gatewayd.catalogue.managed_model import ManagedModel
from gatewayd.catalogue.memory_budget import UNKNOWN, Footprint
from gatewayd.catalogue.target import ModelTarget
from gatewayd.config.catalogue import ModelConfig, check_names, model_configs
from gatewayd.config.device_defaults import sizes
from gatewayd.config.tables import Config
from gatewayd.daemon.options import DaemonOptions
from gatewayd.engines.fleet import EngineFleet
from gatewayd.engines.grammar_checks.checks import GuideChecks
from gatewayd.engines.replicas import launch
from gatewayd.engines.replicas.setup import Launch
from gatewayd.engines.replicas.weight_bytes import expected_engine_bytes
from gatewayd.metrics.registry import GatewayMetrics, Metrics
from gatewayd.pipeline.generation import Generation
from gatewayd.pipeline.live_requests import LiveRequests
from gatewayd.plugins.loaded import LoadedPlugins, check_strategies
from gatewayd.text.text_model import TextModel
from gatewayd_engine.process.config import EngineConfig

_log = logging.getLogger("gatewayd.daemon")


@dataclass(frozen=True, slots=True)
class ServedFiles:
    """Files and tokenizer of a model.

    Attributes:
        path: of the configuration, such as ``hf:org/name``; None for the embedded model.
        source: folder or GGUF file.
        folder: of the checkpoint, which is made of a GGUF file.
        context_len: in tokens.
        text: its tokenizer and template.
    """

    path: str | None
    source: Path
    folder: Path
    context_len: int
    text: TextModel

    @classmethod
    def find(cls, config: Config) -> ServedFiles:
        """Find the configured model.

        Raises:
            OSError, ValueError: it cannot be served.
        """
        source = launch.model_source(config)
        folder = launch.folder_of(source)
        context_len = launch.checked_context_len(config, folder)
        return cls(config.model.path, source, folder, context_len, TextModel.from_folder(folder))


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelParts:
    """Parts of one model.

    Attributes:
        key: of its table in the configuration; None for ``[model]``.
        target: serves the requests for its names.
        fleet: the engines.
        plugged: strategies of this process.
        control: changes of the running model.
        guides: grammar checks before engines.
        managed: its memory, loads and unloads.
        preloads: whether its engines are started with the daemon, if there is memory.
        is_on_trial: whether it is a version that only a deployment leads to.
    """

    key: str | None
    target: ModelTarget
    fleet: EngineFleet
    plugged: LoadedPlugins
    control: Control
    guides: GuideChecks
    managed: ManagedModel
    preloads: bool
    is_on_trial: bool = False

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.target.name


def build_model(
    options: DaemonOptions,
    overrides: Overrides,
    metrics: GatewayMetrics,
    model: ModelConfig,
    files: ServedFiles,
    *,
    is_first: bool = False,
    is_alone: bool = False,
    changes: Overrides | None = None,
) -> ModelParts:
    """Build the parts of a model; nothing runs yet.

    Args:
        options: environment of the daemon.
        overrides: operators' changes of all models.
        metrics: of the gateway, to which the model's are added.
        model: its configuration.
        files: its files.
        is_first: whether it is the model that brings the plugins that all share.
        is_alone: whether it is the only model, which log lines need not name.
        changes: of operators; None for those under its name.

    Raises:
        PluginError: a strategy cannot be loaded, or refuses its settings.
    """
    if changes is None:
        changes = overrides if model.name is None else overrides.of_model(model.name)
    # Before anything is built: engines start with the operators' changes instead of being swapped.
    config = _in_effect(model.config, changes)
    text = files.text
    name = launch.served_name(config) if model.name is None else model.name
    plugged = LoadedPlugins.load(
        config,
        model=name,
        chat_template=text.template.source if text.template else "",
        is_first=is_first,
    )
    # Without a name for the first, what its engines keep on disk is found when others are added.
    engine = msgspec.structs.replace(
        launch.engine_config(config, files.folder, "" if is_first else name),
        log_model="" if is_alone else name,
    )
    fleet = _engines(config, options, plugged, engine)
    control = Control(config, fleet, plugged, changes)
    live = LiveRequests[Generation]()
    own = Metrics(
        metrics,
        fleet,
        name,
        max_model_len=files.context_len,
        control=control,
        slo=config.slo,
        running=live.generated,
    )
    # Metrics read from the control and are called by it; the callback closes that cycle.
    control.on_slo_change = own.slo.set_targets
    # Read at each use, since a reload replaces the configuration.
    guides = GuideChecks(lambda: control.config.guide, str(files.folder), fleet)
    control.on_reload = guides.wake
    target = ModelTarget(
        names=(name, *model.served_names),
        fleet=fleet,
        text=text,
        metrics=own,
        live=live,
        parsers=plugged.parsers,
        guides=guides,
        detector=lambda: control.detector,
    )
    return ModelParts(
        key=model.name,
        target=target,
        fleet=fleet,
        plugged=plugged,
        control=control,
        guides=guides,
        managed=_managed(model, config, files.folder, name, fleet),
        preloads=model.preloads,
    )


def compose_models(
    config: Config,
    known: Mapping[str | None, ServedFiles],
    build: Callable[..., ModelParts],
    models: list[ModelParts],
) -> list[Path]:
    """Build all models; one that an operator has added may be served no more, and is left out.

    Args:
        config: of the daemon, with operators' changes.
        known: files of the models of the configuration's file.
        build: ``build_model`` with its first arguments.
        models: gets the parts of each, in order.

    Returns:
        Folders and GGUF files of the models.

    Raises:
        PluginError: a strategy cannot be loaded, or refuses its settings.
    """
    served: list[ModelConfig] = []
    sources = []
    configured = model_configs(config)
    for model in configured:
        try:
            # Those of the file are known and have names of their own.
            own = models[0].name if models else None
            check_names([*served, model], config, own)
            files = known.get(model.name)
            # An operator may have removed one of the file and added another of its name.
            if files is None or files.path != model.config.model.path:
                files = ServedFiles.find(model.config)
        except (OSError, ValueError) as error:
            _log.error("the added model %s is not served: %s", model.name, error)
            continue
        models.append(build(model, files, is_first=not models, is_alone=len(configured) == 1))
        served.append(model)
        sources.append(files.source)
    return sources


def _managed(
    model: ModelConfig, config: Config, folder: Path, name: str, fleet: EngineFleet
) -> ManagedModel:
    device, engine = sizes(config.engine).device, config.engine
    host, on_device = expected_engine_bytes(config, folder, device)
    is_bounded = engine.kv_pages is None and (device == "cpu" or engine.kv_memory is not None)
    catalogue = config.catalogue
    limit = catalogue.memory if device == "cpu" else catalogue.device_memory
    if limit is not None and not is_bounded and model.memory is None:
        # Pages have a size that only the engine knows, and a share of a device is all that is free.
        host, on_device = (UNKNOWN, 0) if device == "cpu" else (host, UNKNOWN)
    if model.memory is not None:
        host, on_device = (model.memory, 0) if device == "cpu" else (host, model.memory)
    return ManagedModel(name, fleet, Footprint(host, on_device), is_pinned=model.is_pinned)


def _in_effect(file: Config, overrides: Overrides) -> Config:
    """The configuration with operators' changes; the file alone if that is not valid."""
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
    config: Config, options: DaemonOptions, plugged: LoadedPlugins, engine: EngineConfig
) -> EngineFleet:
    fleet = EngineFleet(
        Launch(
            executor=plugged.executor,
            command=tuple(options.command),
            env=launch.environment(config, options.env),
            config=engine,
            patience=launch.silence_limits(config),
        ),
        plugged.router,
        launch.queue_limits(config),
        config.engine.replicas,
        plugged.admission,
    )
    fleet.deadlines = launch.deadlines(config)
    return fleet
