"""Bodies of the admin API for tenants, keys and prices."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

PAGES = r"^([1-9][0-9]{0,8}|(100|[0-9]{1,2}(\.[0-9]{1,3})?)%)$"
"""Pattern of an amount of KV cache; a JSON number could be either pages or a share."""
_MOST = 10**15
"""Maximum of counted amounts, so that sums stay within SQLite's integers."""

Count = Annotated[int, Meta(ge=1, le=10**9)]
Amount = Annotated[int, Meta(ge=0, le=_MOST)]
PerMillion = Annotated[int, Meta(ge=0, le=10**12)]
Pages = Annotated[str, Meta(pattern=PAGES)]
Weight = Annotated[float, Meta(ge=0.01, le=100.0)]
Class = Literal["realtime", "standard", "batch"]
Retention = Annotated[int, Meta(ge=0, le=100)]
RetentionSeconds = Annotated[int, Meta(ge=1, le=86_400)]
Seconds = Annotated[int, Meta(ge=0, le=100 * 366 * 86_400)]
Overlap = Annotated[int, Meta(ge=0, le=7 * 86_400)]
Name = Annotated[str, Meta(max_length=128)]
Scopes = Annotated[list[Name], Meta(min_length=1, max_length=64)]


class TenantTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """``PATCH /admin/tenants/{tenant}``; omitted terms stay, null removes a limit.

    Attributes:
        weight: fair-share weight relative to other tenants.
        requests_per_minute: rate limit of requests.
        tokens_per_minute: rate limit of prompt and completion tokens.
        concurrency: maximum number of concurrent requests.
        kv_floor: guaranteed share of an engine's KV cache, which other tenants cannot evict: a
            number of pages such as "128", or a share of all such as "12.5%".
        kv_ceiling: maximum share of an engine's KV cache that its requests may hold, the same way.
        most_tokens: token budget per budget period.
        most_micros: money budget per budget period, in millionths.
        budget_period: period of the budgets, in UTC; null for no reset. Usage since the beginning
            of the period counts.
        service_class: highest priority class that it may request; null for standard.
        retention_priority: highest priority of kv_retention that it may request; null for 50, the
            normal one.
        retention_seconds: maximum seconds of a priority above 50; null for 86400, a day.
        store_bytes: store quota in bytes; null for its fair share.
    """

    # UNSET is an omitted term, which stays; None is a JSON null, which removes the limit. A weight
    # cannot be removed.
    weight: Weight | UnsetType = UNSET
    requests_per_minute: Count | UnsetType | None = UNSET
    tokens_per_minute: Count | UnsetType | None = UNSET
    concurrency: Count | UnsetType | None = UNSET
    kv_floor: Pages | UnsetType | None = UNSET
    kv_ceiling: Pages | UnsetType | None = UNSET
    most_tokens: Amount | UnsetType | None = UNSET
    most_micros: Amount | UnsetType | None = UNSET
    budget_period: Literal["day", "month"] | UnsetType | None = UNSET
    service_class: Class | UnsetType | None = UNSET
    retention_priority: Retention | UnsetType | None = UNSET
    retention_seconds: RetentionSeconds | UnsetType | None = UNSET
    store_bytes: Amount | UnsetType | None = UNSET


class TenantBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /admin/tenants``."""

    tenant: Name
    terms: TenantTerms = TenantTerms()


class KeyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /admin/keys``.

    Attributes:
        tenant: tenant that the key belongs to.
        name: label, for humans.
        scopes: rights of the key; None for the default ones.
        seconds: lifetime; None for unlimited.
    """

    tenant: Name
    name: Name = ""
    scopes: Scopes | None = None
    seconds: Seconds | None = None


class RotateBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /admin/keys/{key}/rotate``; the old secret stays valid for ``overlap_seconds``."""

    overlap_seconds: Overlap = 0


class PriceBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``PUT /admin/prices``: millionths per million tokens; ``*`` applies to all other models."""

    model: Name
    input: PerMillion
    output: PerMillion
    cached: PerMillion | None = None


class EmptyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An empty body."""
