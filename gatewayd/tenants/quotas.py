"""What tenants are promised of the KV cache: ``128`` pages, or ``12.5%`` of all, of each engine."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, Row, select

from gatewayd.errors import InvalidRequest
from gatewayd.store.tables import tenants
from gatewayd_engine.process.messages import Amount, TenantQuota

_MOST_KEPT = Decimal(90)
"""Percent for all floors together. Floors in pages are known to engines only, which lower all."""


def amount_of(text: str) -> Amount:
    """Read an amount that is of that form."""
    if text.endswith("%"):
        return Amount(share=float(text[:-1]) / 100)
    return Amount(pages=int(text))


def quota_of(row: Row[Any]) -> TenantQuota | None:
    """Of a tenant's row; None if it has neither a floor nor a ceiling."""
    floor, ceiling = (
        None if text is None else amount_of(text) for text in (row.kv_floor, row.kv_ceiling)
    )
    return None if floor is ceiling is None else TenantQuota(row.id, floor, ceiling)


def kept_percent(connection: Connection) -> Decimal:
    """Of the KV cache, what all floors that are shares add up to."""
    query = select(tenants.c.kv_floor).where(
        tenants.c.removed_at.is_(None), tenants.c.kv_floor.endswith("%", autoescape=True)
    )
    return sum((Decimal(text[:-1]) for text in connection.execute(query).scalars()), Decimal(0))


def check_floors(connection: Connection, before: Decimal) -> None:
    """See that a change leaves tenants without a floor some of the cache; lowering always may.

    Args:
        connection: with the change.
        before: what the floors added up to without it, in percent.

    Raises:
        InvalidRequest: it does not.
    """
    kept = kept_percent(connection)
    if kept > max(before, _MOST_KEPT):
        raise InvalidRequest(
            f"kv_floor of all tenants would add up to {kept.normalize():f} % of the KV cache; at "
            f"most {_MOST_KEPT} % may be kept: lower this floor, or another tenant's first",
            param="kv_floor",
        )
