"""What the admin API speaks: bodies of requests, shared with its clients."""

from __future__ import annotations

from typing import Any

import msgspec


class SwapBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``PUT /admin/strategies/{kind}``.

    Attributes:
        name: a strategy, or for logits processors all of them in their order.
        settings: over those of the configuration; for a chain, by name.
    """

    name: str | list[str]
    settings: dict[str, Any] = {}


class SwapAnswer(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        kind: the slot.
        names: what fills it now.
        has_state: whether what the one before knew was handed over.
    """

    kind: str
    names: list[str]
    has_state: bool


class LimitsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """``PATCH /admin/limits``; what is left out stays as it is."""

    max_batch_tokens: int | None = None
    strategy_budget_ms: float | None = None
    max_waiting_requests: int | None = None
    max_waiting_tokens: int | None = None
