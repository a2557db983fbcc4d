"""Strategies chosen by the configuration, and their settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gatewayd.config.catalogue import model_configs
from gatewayd.config.strategies import AUTO, NATIVE, NONE, KindTable, QuantizerTable, StrategyTable
from gatewayd.config.tables import Config
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.errors import PluginError
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.settings import decode, is_secret
from gatewayd_hooks.strategy import Kind

_NO_STRATEGY = {
    Kind.PREFIX_CACHE: (NONE,),
    Kind.GUIDE: (NONE,),
    Kind.DRAFTER: (NONE,),
    Kind.KV_CODEC: (NONE,),
    Kind.KV_COMPRESSION: (NONE,),
    Kind.QUANTIZER: (NONE, AUTO),
    Kind.MODEL_BACKEND: (NATIVE, AUTO),
    Kind.TOOL_PARSER: (NONE, AUTO),
    Kind.REASONING_PARSER: (NONE, AUTO),
}
"""Names that stand for no strategy, or for one that is selected automatically."""


def names_in(table: KindTable) -> list[str]:
    """The names of a kind's strategies, in their order."""
    if isinstance(table, StrategyTable):
        return [table.strategy]
    names: list[str] = table.strategies  # type: ignore[attr-defined]
    return list(names)


def _names(config: Config, kind: Kind, table: KindTable) -> list[str]:
    # The model's backend is chosen beside its path; the kind's table has settings only.
    return [config.model.backend] if kind is Kind.MODEL_BACKEND else names_in(table)


def chosen_in(table: KindTable) -> list[tuple[str, dict[str, Any]]]:
    """The strategies of a kind with their settings."""
    return [(name, table.settings(name)) for name in names_in(table)]


def configured(config: Config) -> Iterator[tuple[Kind, str, KindTable]]:
    """Iterate over all chosen strategies, with kind and table."""
    for kind in Kind:
        table: Any = getattr(config, kind.value, None)
        if table is None:
            continue  # a kind without strategies, which only has hooks
        for name in _names(config, kind, table):
            if name not in _NO_STRATEGY.get(kind, ()):
                yield kind, name, table
        if isinstance(table, QuantizerTable):
            # Matmul kernels are additional to the strategy; none of them can be "none".
            yield from ((kind, name, table) for name in table.kernels)


def routed(config: Config) -> Iterator[tuple[Kind, str, KindTable]]:
    """Iterate over the model routers of all routes, with kind and table."""
    for route in config.routes.values():
        yield Kind.MODEL_ROUTER, route.strategy, route


def enabled(config: Config) -> set[str]:
    """All plugins that the configuration enables for any model, as ``<kind>.<name>``."""
    found = {f"{Kind.UPSTREAM}.{one.strategy}" for one in config.upstreams.values()}
    found |= {f"{kind}.{name}" for kind, name, _ in routed(config)}
    return found.union(*(_enabled_for(model.config) for model in model_configs(config)))


def _enabled_for(config: Config) -> set[str]:
    """Those that it enables for one model."""
    plugins = config.plugins
    hooked = {f"{Kind.OBSERVER}.{name}" for name in plugins.observers}
    hooked |= {f"{Kind.CONSOLE}.{name}" for name in plugins.console}
    return hooked | {f"{kind}.{name}" for kind, name, _ in configured(config)}


def settings_of(config: Config, plugin: str) -> dict[str, Any]:
    """The settings of a strategy, chosen or not; of several models those of the first with it."""
    kind, _, name = plugin.partition(".")
    own = (model.config for model in model_configs(config) if plugin in _enabled_for(model.config))
    table = getattr(next(own, config), kind, None)
    return table.settings(name) if isinstance(table, KindTable) else {}


def hidden_settings(config: Config) -> set[str]:
    """Dotted keys of strategies' settings that must not be shown, those of models' tables included.

    A table whose plugin cannot be loaded is hidden as a whole: its secrets are unknown.
    """
    host = PluginHost(Catalog.installed())
    hidden = _hidden_in(config, host)
    if config.models:
        for model in model_configs(config):
            if model.name is not None:
                below = _hidden_in(model.config, host)
                hidden |= {f"models.{model.name}.{key}" for key in below}
    return hidden


def _hidden_in(config: Config, host: PluginHost) -> set[str]:
    """Those of the tables of one configuration."""
    tables: list[tuple[Kind, str, Any]] = [
        (kind, kind.value, getattr(config, kind.value, None)) for kind in Kind
    ]
    tables += [(Kind.MODEL_ROUTER, f"routes.{name}", it) for name, it in config.routes.items()]
    stated = [
        (kind, name, f"{path}.{name}", settings)
        for kind, path, table in tables
        for name, settings in ((table and table.model_extra) or {}).items()
    ]
    stated += [
        (Kind.UPSTREAM, one.strategy, f"upstreams.{name}.settings", one.settings)
        for name, one in config.upstreams.items()
    ]
    hidden = set()
    for kind, name, path, settings in stated:
        try:
            config_type = host.info(kind, name).config_type
        except PluginError:
            hidden.add(path)
            continue
        hidden |= {
            f"{path}.{key}"
            for key in settings
            # An unknown key may be a misspelt secret.
            if key not in config_type.model_fields or is_secret(config_type, key)
        }
    return hidden


def effective_settings(config: Config) -> dict[tuple[str, str], dict[str, Any]]:
    """All settings of each chosen strategy by kind and name, validated and with defaults.

    Strategies whose plugin cannot be loaded, or refuses its settings, are omitted, and so are
    secrets that the configuration does not set.
    """
    host = PluginHost(Catalog.installed())
    found = {}
    for kind, name, table in configured(config):
        given = table.settings(name)
        try:
            config_type = host.info(kind, name).config_type
            all_ = decode(f"{kind}.{name}", config_type, given).model_dump(mode="json")
        except PluginError:
            continue
        found[kind.value, name] = {
            key: value
            for key, value in all_.items()
            if key in given or not is_secret(config_type, key)
        }
    return found


def shown_kinds(config: Config) -> list[dict[str, Any]]:
    """Chosen strategies of each kind with their settings; secrets are hidden."""
    hidden = hidden_settings(config)
    found = []
    for kind in Kind:
        table = getattr(config, kind.value, None)
        if isinstance(table, KindTable):
            names = _names(config, kind, table)
            settings = {
                name: {
                    key: "***" if _is_hidden(hidden, kind, name, key) else value
                    for key, value in table.settings(name).items()
                }
                for name in names
            }
            found.append({"kind": kind.value, "names": names, "settings": settings})
    return found


def _is_hidden(hidden: set[str], kind: Kind, name: str, key: str) -> bool:
    return f"{kind.value}.{name}" in hidden or f"{kind.value}.{name}.{key}" in hidden
