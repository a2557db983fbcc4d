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


class CausePart(msgspec.Struct, frozen=True):
    """Some of a request's time.

    Attributes:
        cause: what it was spent on.
        begin_ms: after its arrival; None where it happened again and again.
        ms: that it took.
        strategy: that it is due to; empty if none is.
    """

    cause: str
    begin_ms: float | None
    ms: float
    strategy: str = ""


class WhyPart(msgspec.Struct, frozen=True):
    """What ended a request that was not answered.

    Attributes:
        status: of its answer; 499 for a client that has left.
        code: of the error, as the answer had it.
        message: of the error; empty for one about the request itself, which may quote it.
    """

    status: int
    code: str
    message: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /admin/requests/{id}``: where the time of a request went.

    Attributes:
        id: the ``x-request-id`` of its answer.
        request_id: the gateway's own id.
        endpoint: the route.
        tenant: whose it is; empty without tenants.
        priority: its class.
        outcome: ``stop``, ``length``, ``abort`` or ``error``; ``refused`` if no engine was sent
            it; ``running`` until then.
        why: what ended it; None if it was answered, or runs.
        arrived: Unix time.
        ms: from its arrival to the end of its answer, or until now.
        ttft_ms: to the first token; None without any.
        tpot_ms: of each token behind the first; None without such.
        prompt_tokens: of all prompts.
        cached_tokens: of these, found in the prefix cache.
        completion_tokens: of all choices.
        preemptions: how often its choices gave way to others.
        engine_ms: of an engine's time, its share by the tokens of each step.
        verdict: what took most of its time, as a sentence.
        causes: milliseconds by cause, the largest first; they add up to ``ms``.
        parts: the same in the order of time.
    """

    id: str
    request_id: str
    endpoint: str
    tenant: str
    priority: str
    outcome: str
    why: WhyPart | None = None
    arrived: float
    ms: float
    ttft_ms: float | None
    tpot_ms: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    preemptions: int
    engine_ms: float = 0.0
    verdict: str
    causes: dict[str, float]
    parts: list[CausePart]
