"""Parts of the configuration that change while the daemon serves, by name, as JSON and back."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from gatewayd.config.tables import Config


def said(config: Config, section: str) -> Any:  # noqa: ANN401 - JSON
    """What a configuration says in a section: a table, or a key of one as ``table.key``."""
    name, _, key = section.partition(".")
    table: BaseModel = getattr(config, name)
    return table.model_dump(mode="json")[key] if key else table.model_dump(mode="json")


def saying(config: Config, section: str, value: Any) -> Config:  # noqa: ANN401 - JSON
    """The same configuration with another value in a section.

    Raises:
        ValueError: there is no such section, or the value is none for it.
    """
    name, _, key = section.partition(".")
    table = getattr(config, name, None)
    if not isinstance(table, BaseModel):
        raise ValueError(f"there is no [{name}]")
    new = {**table.model_dump(), key: value} if key else value
    return config.model_copy(update={name: type(table).model_validate(new)})
