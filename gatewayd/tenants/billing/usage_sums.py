"""Aggregates old usage rows: one row per hour, tenant, key and model.

Sums by tenant, key, model and budget period are unchanged. Data of single requests is lost: id,
outcome and times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select
from sqlalchemy.dialects import sqlite

from gatewayd.store.tables import usage

_HOUR = 3600
_SINGLE = usage.c.id >= "use_"
"""Ids of single requests sort by time; ids of aggregates sort before them."""
_TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")
_ADDED = (*_TOKENS, "micros", "engine_seconds", "requests", "total_ms")


def num_over(connection: Connection, keep: int) -> int:
    """Number of rows of single requests beyond those to keep."""
    count = select(func.count()).select_from(usage).where(_SINGLE)
    return max(0, connection.execute(count).scalar_one() - keep)


def aggregate(connection: Connection, count: int) -> None:
    """Aggregate the ``count`` oldest rows of single requests.

    A settlement that is retried must find its row: rows that may still be retried must be kept.
    """
    # By id, which begins with the time of the request.
    oldest = select(usage).where(_SINGLE).order_by(usage.c.id).limit(count)
    rows = connection.execute(oldest).all()
    if not rows:
        return
    # An hour may be aggregated in several parts: each adds to the row of the ones before.
    statement = sqlite.insert(usage)
    added = {name: usage.c[name] + statement.excluded[name] for name in _ADDED}
    added["created_at"] = func.max(usage.c.created_at, statement.excluded.created_at)
    sums = [_sum(group) for group in _groups(rows)]
    connection.execute(statement.on_conflict_do_update(["id"], set_=added), sums)
    connection.execute(delete(usage).where(usage.c.id.in_([row.id for row in rows])))


def _groups(rows: Sequence[Row[Any]]) -> list[list[Row[Any]]]:
    groups: dict[tuple[Any, ...], list[Row[Any]]] = {}
    for row in rows:
        hour = row.created_at // _HOUR
        groups.setdefault((hour, row.tenant, row.key_id, row.model), []).append(row)
    return list(groups.values())


def _sum(rows: Sequence[Row[Any]]) -> dict[str, Any]:
    """The aggregate of an hour's requests; budget periods begin on the hour."""
    first = rows[0]
    hour = first.created_at // _HOUR
    return {
        # No tenant and no key has a slash; a model may.
        "id": f"sum_{hour:010d}/{first.tenant}/{first.key_id or ''}/{first.model}",
        "request_id": "",
        "tenant": first.tenant,
        "key_id": first.key_id,
        "endpoint": "",
        "model": first.model,
        "created_at": max(row.created_at for row in rows),
        "outcome": "",
        **{name: sum(row._mapping[name] for row in rows) for name in _ADDED},
    }
