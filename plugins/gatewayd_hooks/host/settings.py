"""Decodes a strategy's table of the configuration into validated settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gatewayd_hooks.helpers.children import working_folder
from gatewayd_hooks.host.errors import BadSettings, nearest
from gatewayd_hooks.strategy import StrategyConfig


def decode(
    plugin: str, config_type: type[StrategyConfig], settings: Mapping[str, Any]
) -> StrategyConfig:
    """Validate the settings of a strategy; relative paths become absolute.

    Args:
        plugin: ``<kind>.<name>``, the table's name.
        config_type: type of the settings.
        settings: the table.

    Raises:
        BadSettings: a key is unknown, missing, or has an invalid value.
    """
    try:
        return config_type.model_validate(_from_here(config_type, settings))
    except ValidationError as error:
        raise BadSettings(plugin, problems_in(config_type, error)) from None


def _from_here(config_type: type[StrategyConfig], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with absolute paths, which are valid in any working directory."""
    found = dict(settings)
    for key, field in config_type.model_fields.items():
        extra, value = field.json_schema_extra, found.get(key)
        is_path = isinstance(extra, dict) and bool(extra.get("is_path"))
        # A strategy expands `~` itself, in the process in which it runs.
        if is_path and isinstance(value, str) and value and not value.startswith("~"):
            found[key] = os.path.join(working_folder(), value)
    return found


def problems_in(table: type[BaseModel], error: ValidationError) -> list[str]:
    """Return the errors of a table, one sentence for each key; secrets are not shown."""
    return [_problem(table, detail) for detail in error.errors(include_url=False)]


def _problem(table: type[BaseModel], detail: ErrorDetails) -> str:
    if not detail["loc"]:
        return detail["msg"].removeprefix("Value error, ")
    key = ".".join(map(str, detail["loc"]))
    if detail["type"] == "missing":
        return f"{key} is not set; it has no default"
    if detail["type"] == "extra_forbidden":
        known = list(table.model_fields)
        if near := nearest(key, known):
            return f"{key} is unknown; did you mean {near}?"
        return f"{key} is unknown; " + (
            f"known settings: {', '.join(known)}" if known else "the table has no settings"
        )
    rule = detail["msg"].replace("Input should", "it should", 1).removeprefix("Value error, ")
    # The value would be printed and logged.
    if is_secret(table, str(detail["loc"][0])):
        return f"{key} is not allowed: {rule}"
    return f"{key} is {detail['input']!r}: {rule}"


def is_secret(config_type: type[BaseModel], key: str) -> bool:
    """Whether a setting is marked ``reload="secret"`` and must not be shown."""
    field = config_type.model_fields.get(key)
    extra = None if field is None else field.json_schema_extra
    return isinstance(extra, dict) and extra.get("reload") == "secret"


def needing_restart(
    plugin: str,
    config_type: type[StrategyConfig],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> list[str]:
    """Return the settings that differ and are marked ``reload="restart"``.

    Raises:
        BadSettings: the new settings are invalid.
    """
    old, new = decode(plugin, config_type, before), decode(plugin, config_type, after)
    return [
        key
        for key, field in config_type.model_fields.items()
        if getattr(old, key) != getattr(new, key)
        and not (
            isinstance(field.json_schema_extra, dict)
            and field.json_schema_extra.get("reload") in ("hot", "secret")
        )
    ]
