"""Aggregated usage of tenants, from the rows of their requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Connection, func, select

from gatewayd.errors import InvalidRequest
from gatewayd.store.tables import usage

_BY = {
    "tenant": (usage.c.tenant,),
    "key": (usage.c.tenant, usage.c.key_id),
    "model": (usage.c.tenant, usage.c.model),
}
BY = tuple(_BY)
_SUMS = ("prompt_tokens", "cached_tokens", "completion_tokens", "micros", "engine_seconds")


def summed(
    connection: Connection, *, by: str = "tenant", tenant: str | None = None, since: int = 0
) -> list[dict[str, Any]]:
    """Aggregate usage, with the time of the latest request.

    Args:
        connection: to read with.
        by: grouping, one of ``BY``.
        tenant: to restrict to; None for all.
        since: Unix time of the first request.

    Raises:
        InvalidRequest: the grouping is unknown.
    """
    if by not in _BY:
        raise InvalidRequest(f"by is {by[:32]!r}; it must be one of {', '.join(BY)}", param="by")
    group: Sequence[Column[Any]] = _BY[by]
    sums = [func.sum(usage.c[name]).label(name) for name in _SUMS]
    last = func.max(usage.c.created_at).label("last_at")
    query = select(*group, func.sum(usage.c.requests).label("requests"), *sums, last)
    query = query.where(usage.c.created_at >= since).group_by(*group).order_by(*group)
    if tenant is not None:
        query = query.where(usage.c.tenant == tenant)
    return [dict(row._mapping) for row in connection.execute(query)]
