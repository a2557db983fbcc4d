"""Sections of the configuration that can change at runtime, converted from and to JSON."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from gatewayd.config.tables import Config


def value_of(config: Config, section: str) -> Any:  # noqa: ANN401 - JSON
    """The value of a section: a table, or a key of one as ``table.key``."""
    name, _, key = section.partition(".")
    table: BaseModel = getattr(config, name)
    return table.model_dump(mode="json")[key] if key else table.model_dump(mode="json")


def with_value(config: Config, section: str, value: Any) -> Config:  # noqa: ANN401 - JSON
    """Return the configuration with another value of a section.

    Raises:
        ValueError: the section does not exist, or the value is not valid.
    """
    name, _, key = section.partition(".")
    table = getattr(config, name, None)
    if not isinstance(table, BaseModel):
        raise ValueError(f"there is no [{name}]")
    new = {**table.model_dump(), key: value} if key else value
    return config.model_copy(update={name: type(table).model_validate(new)})
