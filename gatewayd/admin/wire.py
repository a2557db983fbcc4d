"""What the admin API speaks: bodies of requests, shared with its clients."""

from __future__ import annotations

from typing import Any, Literal

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


class PinMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str


class PinBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``PUT /admin/pins``.

    Attributes:
        seconds: for which it is kept from now on; 0 lets go of it.
        prompt: text or token ids; with 0 seconds, and no messages, None stands for everything.
        messages: of a chat, instead of a prompt.
    """

    seconds: float
    prompt: str | list[int] | None = None
    messages: list[PinMessage] | None = None


class PinAnswer(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        prompt_tokens: that were asked for.
        pinned_tokens: of these that are cached, and pinned now, by engine.
    """

    prompt_tokens: int
    pinned_tokens: dict[str, int]
