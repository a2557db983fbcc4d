"""Waiting requests by tenant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Group(NamedTuple):
    """What one tenant has waiting.

    Attributes:
        tenant: its name; empty for those without one.
        requests: ids, the oldest first.
        prompt_tokens: of all of them.
        waited_ms: of all of them.
    """

    tenant: str
    requests: list[str]
    prompt_tokens: int
    waited_ms: float


def groups(look: Mapping[str, Any]) -> list[Group]:
    """All of them, whoever has waited longest in sum first."""
    by_tenant: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(look["waiting"], key=lambda row: -row["age_ms"]):
        by_tenant.setdefault(row["tenant"], []).append(row)
    found = [
        Group(
            tenant,
            [row["id"] for row in rows],
            sum(row["prompt_tokens"] for row in rows),
            sum(row["age_ms"] for row in rows),
        )
        for tenant, rows in by_tenant.items()
    ]
    return sorted(found, key=lambda group: -group.waited_ms)
