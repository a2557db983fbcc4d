"""What tenants are promised of the KV cache: ``128`` pages, or ``12.5%`` of all, of each engine."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row

from gatewayd_engine.messages import Amount, TenantQuota


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
