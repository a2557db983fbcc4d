"""Changes without a restart: validation, and the resulting configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from gatewayd.config.device_defaults import limit_of, sizes
from gatewayd.config.slo import SloTable
from gatewayd.config.strategies import KindTable, StrategyTable
from gatewayd.config.tables import Config
from gatewayd_engine.process.config import ENGINE_KINDS, FIXED_KINDS
from gatewayd_hooks.host.settings import problems_in
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger(__name__)

SWAPPABLE = (
    *(kind for kind in ENGINE_KINDS if kind not in FIXED_KINDS),
    Kind.ADMISSION,
    Kind.ROUTER,
)
LIMITS = {
    "max_batch_tokens": "engine",
    "strategy_budget_ms": "engine",
    "max_waiting_requests": "queue",
    "max_waiting_tokens": "queue",
}
"""Limits that can change at runtime, and their tables."""


class ChangeRefused(Exception):
    """A change that was refused; the message has the reason."""


def limits_in(config: Config) -> dict[str, Any]:
    """The present values of all limits that can change."""
    return {name: limit_of(config, table, name) for name, table in LIMITS.items()}


def kind_table_with(
    config: Config, kind: str, names: list[str], settings: Mapping[str, Mapping[str, Any]]
) -> KindTable:
    """Build the table of a kind with other strategies.

    Args:
        config: present configuration.
        kind: the kind.
        names: one strategy, ``none`` where the kind is optional, or a chain in its order.
        settings: by name, overriding the configuration's.

    Raises:
        ChangeRefused: the kind does not exist, or cannot have these strategies.
    """
    table = getattr(config, kind, None)
    if not isinstance(table, KindTable):
        kinds = [k.value for k in Kind if isinstance(getattr(config, k, None), KindTable)]
        raise ChangeRefused(f"there is no kind {kind!r}; there is {', '.join(kinds)}")
    tables = dict(table.model_extra or {})
    for name, values in settings.items():
        tables[name] = {**tables.get(name, {}), **values}
    if isinstance(table, StrategyTable):
        if len(names) != 1:
            raise ChangeRefused(f"{kind} takes one strategy")
        chosen: dict[str, Any] = {"strategy": names[0]}
    else:
        chosen = {"strategies": names}
    # Keys of the table itself, such as the limits of grammar checks, stay as they are.
    own = {key: getattr(table, key) for key in type(table).model_fields}
    try:
        return type(table).model_validate({**own, **tables, **chosen})
    except ValidationError as error:
        raise ChangeRefused(f"[{kind}]: {'; '.join(problems_in(type(table), error))}") from None


def limited(config: Config, changes: Mapping[str, Any], most_tokens: int) -> Config:
    """Build the configuration with other limits.

    Args:
        config: present configuration.
        changes: values by limit.
        most_tokens: maximum of ``max_batch_tokens``, for which engines have allocated memory.

    Raises:
        ChangeRefused: the limit does not exist, or a value is out of bounds.
    """
    tables: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        if name not in LIMITS:
            raise ChangeRefused(f"there is no limit {name!r}; there is {', '.join(LIMITS)}")
        tables.setdefault(LIMITS[name], {})[name] = value
    new = {}
    for name, values in tables.items():
        table = getattr(config, name)
        try:
            new[name] = type(table).model_validate({**table.model_dump(), **values})
        except ValidationError as error:
            raise ChangeRefused(f"[{name}]: {'; '.join(problems_in(type(table), error))}") from None
    config = config.model_copy(update=new)
    # Checked in the result, because an unset value means the device's default.
    if sizes(config.engine).max_batch_tokens > most_tokens:
        raise ChangeRefused(
            f"max_batch_tokens is {config.engine.max_batch_tokens}; without a restart it can "
            f"be at most {most_tokens}, as at the start"
        )
    return config


def slo_with(config: Config, changes: Mapping[str, Mapping[str, Any]]) -> SloTable:
    """Build the SLO targets with changes.

    Args:
        config: present configuration.
        changes: targets and objectives by class; None for no target.

    Raises:
        ChangeRefused: the class or target does not exist, or a value is out of bounds.
    """
    tables = config.slo.model_dump()
    for name, values in changes.items():
        if name not in tables:
            raise ChangeRefused(f"there is no class {name!r}; there is {', '.join(tables)}")
        tables[name] |= values
    try:
        return SloTable.model_validate(tables)
    except ValidationError as error:
        raise ChangeRefused(f"[slo]: {'; '.join(problems_in(SloTable, error))}") from None


def log_restarts_required(now: Config, new: Config) -> None:
    """Log changed settings that do not take effect without a restart."""
    hot = {kind.value for kind in SWAPPABLE} | {"log", "slo"}
    for table in type(now).model_fields:
        if table in hot:
            continue
        ours, theirs = getattr(now, table), getattr(new, table)
        # Tables by name: models are compared one by one, routes and upstreams once for all.
        if not isinstance(ours, BaseModel):
            continue
        # Of both: a sub-table of a strategy may be in one of them only.
        for key in {**ours.model_dump(), **theirs.model_dump()}:
            # Limits are applied at once, by the caller.
            if LIMITS.get(key) != table and _value(ours, key) != _value(theirs, key):
                _log.warning("restart required: [%s] %s has changed", table, key)
    if new.log.format != now.log.format:
        _log.warning("restart required: [log] format has changed")


def _value(table: Any, key: str) -> Any:  # noqa: ANN401 - a table of any kind
    return getattr(table, key, None)
