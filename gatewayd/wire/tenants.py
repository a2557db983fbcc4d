"""Bodies of the admin API's routes of tenants, keys and prices."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

PAGES = r"^([1-9][0-9]{0,8}|(100|[0-9]{1,2}(\.[0-9]{1,3})?)%)$"
"""Of an amount of the KV cache; JSON's numbers would not say which of the two they are."""
_MOST = 10**15
"""Of what is counted: sums of it stay far from what SQLite's integers hold."""

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
    """``PATCH /admin/tenants/{tenant}``; what is left out stays, null takes a limit away.

    Attributes:
        weight: beside other tenants.
        requests_per_minute: at most.
        tokens_per_minute: at most, of prompts and answers.
        concurrency: requests at once, at most.
        kv_floor: of its cached pages in an engine's KV cache, what others' requests leave there:
            a number of pages such as "128", or a share of all such as "12.5%".
        kv_ceiling: what its requests may hold there, the same way.
        most_tokens: that it may use in all.
        most_micros: millionths of money that it may use in all.
        budget_period: in which it may use so much, in UTC; null for all time. What it has used
            since the period began counts.
        service_class: the most urgent class of service that it may ask for; null for standard.
        retention_priority: the highest priority of kv_retention that it may ask for; null for 50,
            the usual.
        retention_seconds: for how long a priority above 50 may count; null for 86400, a day.
        store_bytes: what it may keep in the store, in bytes; null for its fair share.
    """

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
        tenant: whose it is.
        name: for people.
        scopes: its rights; None for the usual ones.
        seconds: for which it is good; None for ever.
    """

    tenant: Name
    name: Name = ""
    scopes: Scopes | None = None
    seconds: Seconds | None = None


class RotateBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /admin/keys/{key}/rotate``; for so many seconds the old secret is good, too."""

    overlap_seconds: Overlap = 0


class PriceBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``PUT /admin/prices``: millionths for a million tokens; ``*`` is all other models."""

    model: Name
    input: PerMillion
    output: PerMillion
    cached: PerMillion | None = None


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No body."""
