"""What a request may take, and what it took: the rows of the ledger."""

from __future__ import annotations

from typing import Any, NamedTuple

from gatewayd.tenants.billing.prices import Price


class RequestedCost(NamedTuple):
    """A request, before it runs.

    Attributes:
        request_id: the gateway's.
        tenant: whose it is.
        key_id: of its key, or None.
        endpoint: the route.
        model: that is to answer.
        prompt_tokens: of its prompts.
        most_tokens: that may be generated, by all choices.
        answers: that share those, all of them as long.
        length_param: the field that says how long.
    """

    request_id: str
    tenant: str
    key_id: str | None
    endpoint: str
    model: str
    prompt_tokens: int
    most_tokens: int
    answers: int = 1
    length_param: str = "max_tokens"

    def shorter(self, tokens: int) -> dict[str, Any] | None:
        """What to change so that it takes no more tokens than this; None if nothing helps."""
        each = (tokens - self.prompt_tokens) // self.answers
        return {self.length_param: each} if 0 < each < self.most_tokens // self.answers else None

    @property
    def tokens(self) -> int:
        """That it may take in all."""
        return self.prompt_tokens + self.most_tokens


class LedgerEntry(NamedTuple):
    """A request in the ledger.

    Attributes:
        id: of its row.
        asked: the request.
        price: of its model, when it came.
        created_at: Unix time of its start.
        is_reserved: whether its most was taken from a budget.
    """

    id: str
    asked: RequestedCost
    price: Price
    created_at: int
    is_reserved: bool

    @property
    def micros(self) -> int:
        """What it can cost."""
        return self.price.most(self.asked.prompt_tokens, self.asked.most_tokens)


class Spent(NamedTuple):
    """What a request took.

    Attributes:
        outcome: ``stop``, ``length``, ``abort``, ``error``, or ``lost`` with the daemon.
        prompt_tokens: of its prompts.
        cached_tokens: of these, found in the prefix cache.
        completion_tokens: generated, by all choices.
        queue_ms: that it waited at the engine; None if it never ran.
        first_ms: to its first token; None without any.
        total_ms: to its end.
        engine_seconds: of the engines' time, by its share of the tokens of their steps.
    """

    outcome: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_ms: int | None = None
    first_ms: int | None = None
    total_ms: int = 0
    engine_seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """In all."""
        return self.prompt_tokens + self.completion_tokens


class Settlement(NamedTuple):
    """A request that is over; ``spent`` is None for one that never ran, and leaves no trace."""

    entry: LedgerEntry
    spent: Spent | None
