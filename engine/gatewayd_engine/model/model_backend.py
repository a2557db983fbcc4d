"""Choice of the backend that builds a model's layers: the engine's own decoder or a plugin."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatewayd_engine.model.config.text_part import ANNOUNCED
from gatewayd_engine.model.gguf.files import has_gguf
from gatewayd_engine.model.json_fields import JsonFields, SpecError
from gatewayd_engine.model.plugin_model import PluginSpec
from gatewayd_engine.model.spec import ModelSpec, UnsupportedModel, read_spec
from gatewayd_engine.process.config import EngineConfig, EngineConfigError, StrategyChoice
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.model_backends import ModelBackendResources
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger(__name__)

AUTO, NATIVE = "auto", "native"
FALLBACK = "transformers"
"""The plugin that ``auto`` takes where the engine's own decoder cannot serve."""
_KIND = Kind.MODEL_BACKEND


@dataclass(frozen=True, slots=True)
class PluginBackend:
    """An opened model backend.

    Attributes:
        choice: its name and settings.
        watched: the strategy, whose calls are timed.
        spec: of the model, from it.
    """

    choice: StrategyChoice
    watched: Any
    spec: PluginSpec


def choose_backend(
    config: EngineConfig, host: PluginHost, plugin_times: PluginTimes
) -> ModelSpec | PluginBackend:
    """Return the native spec of the model, or the plugin that serves it.

    Raises:
        SpecError: the model cannot be served.
        EngineConfigError: the configuration asks a plugin for what only ``native`` can do.
        PluginError: the plugin cannot be loaded.
    """
    choice = config.model_backend
    if choice.name == NATIVE:
        return _native(config)
    if choice.name != AUTO:
        return _opened(config, host, plugin_times, choice)
    try:
        return _native(config)
    except UnsupportedModel as error:
        chosen = StrategyChoice(FALLBACK, choice.settings.get(FALLBACK, {}))
        if FALLBACK not in {row.name for row in host.report() if row.kind == _KIND}:
            raise
        try:
            found = _opened(config, host, plugin_times, chosen)
        except (SpecError, EngineConfigError) as other:
            # Both reasons: what to do about it may be in either.
            raise type(other)(f"{error}; {other}") from other
        _log.info("model backend: %s, since native cannot serve it: %s", FALLBACK, error)
        return found


def _native(config: EngineConfig) -> ModelSpec:
    spec = read_spec(Path(config.model), config.max_model_len)
    _check_sinks(config, spec.architecture, has_sinks=spec.family.has_sinks)
    return spec


def _opened(
    config: EngineConfig, host: PluginHost, plugin_times: PluginTimes, choice: StrategyChoice
) -> PluginBackend:
    who = f"{_KIND}.{choice.name}"
    if [_KIND, choice.name] in config.quarantined:
        raise EngineConfigError(
            f"{who} is quarantined because an engine crashed in it, or was killed; restart the"
            " daemon to try it again"
        )
    _refuse_unread(config, who)
    strategy = host.strategy(_KIND, choice.name, choice.settings)
    watched = plugin_times.watch(_KIND, choice.name, strategy)
    try:
        watched.open(ModelBackendResources(config.model, config.device, config.max_model_len))
        spec = PluginSpec(watched.facts())
    except ValueError as error:
        watched.close()
        raise SpecError(str(error)) from error
    except BaseException:
        watched.close()
        raise
    try:
        _check_latents(config, spec)
        _check_sinks(config, spec.architecture, has_sinks=spec.facts.has_sinks)
    except EngineConfigError:
        watched.close()
        raise
    return PluginBackend(choice, watched, spec)


def _check_latents(config: EngineConfig, spec: PluginSpec) -> None:
    """Refuse keys that are the values where no attention reads them.

    Raises:
        EngineConfigError: the model has such, and the configuration another device.
    """
    if spec.attention.values_are_keys and config.device != "cpu":
        raise EngineConfigError(
            f"{spec.architecture} has keys that are its values (latent attention), which are"
            ' served on a CPU only; set [engine] device to "cpu"'
        )


def _check_sinks(config: EngineConfig, architecture: str, *, has_sinks: bool) -> None:
    """Refuse attention sinks where no attention computes them.

    Raises:
        EngineConfigError: the model has sinks, and the configuration a compression.
    """
    if has_sinks and config.kv_compression is not None:
        raise EngineConfigError(
            f"{architecture} has attention sinks, which are served without [kv_compression] only"
        )


def _refuse_unread(config: EngineConfig, who: str) -> None:
    folder = Path(config.model)
    if config.dummy_weights:
        raise EngineConfigError(
            f"[model] dummy_weights works with [model] backend native, not {who}"
        )
    if has_gguf(folder):
        raise SpecError(f"{folder}: {who} reads no gguf files")
    fields = JsonFields.of_file(folder / "config.json")
    for name in ANNOUNCED:
        if fields.raw(name) is not None:
            raise SpecError(
                f"{fields.where}: {name}: {who} reads float checkpoints only; [quantizer] strategy"
                " quantizes them while they are loaded"
            )
