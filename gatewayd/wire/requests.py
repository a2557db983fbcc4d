"""Bodies of requests and responses of the admin API, shared with its clients."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class SwapBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``PUT /admin/strategies/{kind}``.

    Attributes:
        name: a strategy, or an ordered list of all logits processors.
        settings: settings that override the configuration; for a chain, by name.
    """

    name: str | list[str]
    settings: dict[str, Any] = {}


class SwapAnswer(msgspec.Struct, frozen=True):
    """Result of a swap.

    Attributes:
        kind: the strategy kind.
        names: its strategies now.
        has_state: whether the previous strategy's state was handed over.
    """

    kind: str
    names: list[str]
    has_state: bool


class LimitsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """``PATCH /admin/limits``; omitted limits stay as they are."""

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
        seconds: duration of the pin from now on; 0 removes it.
        prompt: text or token ids; with 0 seconds, and without messages, None stands for all pins.
        messages: messages of a chat, instead of a prompt.
    """

    seconds: float
    prompt: str | list[int] | None = None
    messages: list[PinMessage] | None = None


class PinAnswer(msgspec.Struct, frozen=True):
    """Result of a pin.

    Attributes:
        prompt_tokens: tokens of the prompt.
        pinned_tokens: of these, cached and now pinned tokens, by engine.
    """

    prompt_tokens: int
    pinned_tokens: dict[str, int]


class CausePart(msgspec.Struct, frozen=True):
    """A part of a request's time.

    Attributes:
        cause: cause of the time.
        begin_ms: begin, after the request's arrival; None for repeated parts.
        ms: duration.
        strategy: the strategy that caused it; empty for none.
    """

    cause: str
    begin_ms: float | None
    ms: float
    strategy: str = ""


class WhyPart(msgspec.Struct, frozen=True):
    """Reason why a request failed.

    Attributes:
        status: HTTP status; 499 for a client that has disconnected.
        code: code of the error in the response.
        message: message of the error; empty if it concerns the request itself, which it may quote.
    """

    status: int
    code: str
    message: str


class AttemptPart(msgspec.Struct, frozen=True):
    """Attempt at one target of a route.

    Attributes:
        target: name of the model.
        outcome: ``answered``, ``rejected`` by the route's judge, ``sampled`` for it, or the
            failure.
        ms: until the first output, the end of a judged answer, or the failure.
        detail: code of the error, or reason of the judge.
        score: of the judge; None if it was not judged.
        prompt_tokens: charged for answers that were not sent.
        completion_tokens: charged for answers that were not sent.
    """

    target: str
    outcome: str
    ms: float
    detail: str = ""
    score: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


class RoutePart(msgspec.Struct, frozen=True):
    """Decision of the route that a request named.

    Attributes:
        route: its name.
        strategy: model router.
        reason: of the decision.
        order: targets in the order in which they are tried.
        scores: of all candidates; None for one without a score.
        attempts: in the order of time.
    """

    route: str
    strategy: str
    reason: str
    order: list[str]
    scores: dict[str, float | None]
    attempts: list[AttemptPart]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /admin/requests/{id}``: breakdown of a request's time.

    Attributes:
        id: the ``x-request-id`` of its response.
        request_id: id given by the gateway.
        endpoint: the route.
        model: name of its model; empty if it was refused before a model was chosen, or was stored
            by an earlier version.
        tenant: its tenant; empty without tenants.
        priority: its priority class.
        outcome: ``stop``, ``length``, ``abort`` or ``error``; ``refused`` if it was not sent to an
            engine; ``running`` before its end.
        why: why it failed; None if it succeeded, or is running.
        arrived: Unix time of its arrival.
        ms: time from its arrival to the end of its response, or until now.
        ttft_ms: time to its first token; None without any.
        tpot_ms: time per token after the first; None without such.
        prompt_tokens: tokens of all its prompts.
        cached_tokens: of these, found in the prefix cache.
        completion_tokens: tokens of all its choices.
        preemptions: number of preemptions of its choices.
        engine_ms: engine time, by its share of the tokens of each step.
        verdict: largest cause of its time, as a sentence.
        causes: milliseconds by cause, largest first; their sum is ``ms``.
        parts: the same in the order of time.
        route: decision of its route; None if it named a model.
    """

    id: str
    request_id: str
    endpoint: str
    model: str = ""
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
    route: RoutePart | None = None
