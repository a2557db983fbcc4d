"""Enforces a tenant's rights (class of service, cache retention) on a validated request.

Every route calls ``enforce_grant`` on the parsed request before anything else reads it. gatewayd's
own fields that exceed the rights are refused. Fields for which other APIs allow a fallback are
lowered to what is granted, and the response lists them as ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from gatewayd.errors import PermissionDenied
from gatewayd.http.openai.sampling import A_DAY, TIER_NAMES, priority_of
from gatewayd.tenants.grants import Grant
from gatewayd.tenants.principal import Principal
from gatewayd_hooks.requests.tables import RequestTable
from gatewayd_hooks.scheduling import Priority

TableT = TypeVar("TableT", bound=RequestTable)

FIELDS = ("priority", "service_tier", "kv_retention", "prompt_cache_retention")
"""Fields that request priority or cache retention; new ones must be added here and to the tests."""


def enforce_grant(
    request: TableT, ignored: Sequence[str], principal: Principal
) -> tuple[TableT, list[str]]:
    """Enforce the rights of a principal on a request.

    The operator, and all clients of servers without keys, have no restrictions.

    Args:
        request: validated against its schema.
        ignored: its fields that have no effect.
        principal: the sender.

    Returns:
        The request as it is served, and the fields that have no effect.

    Raises:
        PermissionDenied: it requests a class of service or a cache retention that the tenant was
            not granted.
    """
    if (grant := principal.grant) is None:
        return request, list(ignored)
    fields = type(request).model_fields
    changed: dict[str, Any] = {}
    if "service_tier" in fields:
        changed |= _class_of(request, grant, principal.tenant)
    if "kv_retention" in fields:
        _check_retention(request, grant, principal.tenant)
    if getattr(request, "prompt_cache_retention", None) == "24h" and not grant.keeps(*A_DAY):
        changed["prompt_cache_retention"] = "in_memory"
    if not changed:
        return request, list(ignored)
    # A default that is lowered is no field of the client, so it is not listed.
    lowered = [name for name in changed if getattr(request, name) is not None]
    return request.model_copy(update=changed), [*ignored, *lowered]


def _class_of(request: Any, grant: Grant, tenant: str) -> dict[str, str]:  # noqa: ANN401 - a table
    """Return a lower ``service_tier`` if the requested class is too urgent."""
    asked, most = priority_of(request), grant.service_class
    if asked >= most:  # the most urgent is 0
        return {}
    if request.priority is not None:
        name = Priority(most).name.lower()
        raise PermissionDenied(
            f"priority is {request.priority!r}, the class {asked.name.lower()}; the most urgent "
            f"class that tenant {tenant} may ask for is {name}: ask for {name}, or the operator "
            "for a more urgent service_class",
            param="priority",
        )
    return {"service_tier": TIER_NAMES[most]}


def _check_retention(request: Any, grant: Grant, tenant: str) -> None:  # noqa: ANN401 - a table
    retention = request.kv_retention
    if retention is None or grant.keeps(retention.priority, retention.seconds):
        return
    if retention.priority > grant.retention_priority:
        raise PermissionDenied(
            f"kv_retention.priority is {retention.priority}; tenant {tenant} may ask for at most "
            f"{grant.retention_priority}: lower it, or ask the operator for a higher "
            "retention_priority",
            param="kv_retention.priority",
        )
    raise PermissionDenied(
        f"kv_retention.seconds is {retention.seconds:g}; tenant {tenant} may ask for at most "
        f"{grant.retention_seconds}: lower it, or ask the operator for more retention_seconds",
        param="kv_retention.seconds",
    )
