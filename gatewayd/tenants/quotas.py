"""KV-cache quotas of tenants: ``128`` pages, or ``12.5%`` of all, of each engine."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, Row, select

from gatewayd.errors import InvalidRequest
from gatewayd.store.tables import tenants
from gatewayd_engine.process.messages import Amount, TenantQuota

_MOST_KEPT = Decimal(90)
"""Percent for all floors together. Floors in pages are known to engines only, which scale all."""


def amount_of(text: str) -> Amount:
    """Parse an amount in that format."""
    if text.endswith("%"):
        return Amount(share=float(text[:-1]) / 100)
    return Amount(pages=int(text))


def quota_of(row: Row[Any]) -> TenantQuota | None:
    """The quota in a tenant's row; None if it has neither a floor nor a ceiling."""
    floor, ceiling = (
        None if text is None else amount_of(text) for text in (row.kv_floor, row.kv_ceiling)
    )
    return None if floor is ceiling is None else TenantQuota(row.id, floor, ceiling)


def kept_percent(connection: Connection) -> Decimal:
    """Sum of all floors that are percentages of the KV cache."""
    query = select(tenants.c.kv_floor).where(
        tenants.c.removed_at.is_(None), tenants.c.kv_floor.endswith("%", autoescape=True)
    )
    # Decimal, since shares such as 0.1 % would not add up exactly as floats.
    return sum((Decimal(text[:-1]) for text in connection.execute(query).scalars()), Decimal(0))


def check_floors(connection: Connection, before: Decimal) -> None:
    """Check that a change leaves cache to tenants without a floor; lowering is always allowed.

    Args:
        connection: with the change.
        before: sum of the floors before the change, in percent.

    Raises:
        InvalidRequest: the floors exceed the maximum.
    """
    kept = kept_percent(connection)
    if kept > max(before, _MOST_KEPT):
        raise InvalidRequest(
            f"kv_floor of all tenants would add up to {kept.normalize():f} % of the KV cache; at "
            f"most {_MOST_KEPT} % may be kept: lower this floor, or another tenant's first",
            param="kv_floor",
        )
