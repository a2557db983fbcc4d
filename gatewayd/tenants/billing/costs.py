"""Maximum and actual cost of requests: the rows of the ledger."""

from __future__ import annotations

from typing import Any, NamedTuple

from gatewayd.tenants.billing.prices import Price


class RequestedCost(NamedTuple):
    """Maximum cost of a request, known before it runs.

    Attributes:
        request_id: id given by the gateway.
        tenant: the tenant that is charged.
        key_id: id of its API key, or None.
        endpoint: the route.
        model: the requested model.
        prompt_tokens: tokens of all its prompts.
        most_tokens: maximum of generated tokens, over all choices.
        answers: number of choices that share those equally.
        length_param: name of the field that sets the length.
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
        """The change with which it takes at most ``tokens``; None if no change helps."""
        # The prompt is fixed; only the length of the answers can shrink, each by the same.
        each = (tokens - self.prompt_tokens) // self.answers
        return {self.length_param: each} if 0 < each < self.most_tokens // self.answers else None

    @property
    def tokens(self) -> int:
        """Maximum tokens, prompt and output."""
        return self.prompt_tokens + self.most_tokens


class LedgerEntry(NamedTuple):
    """A request in the ledger: its maximum cost and price.

    Attributes:
        id: id of its row.
        asked: its maximum cost.
        price: price of its model when it arrived.
        created_at: Unix time of its start.
        is_reserved: whether its maximum was reserved in a budget.
    """

    id: str
    asked: RequestedCost
    price: Price
    created_at: int
    is_reserved: bool

    @property
    def micros(self) -> int:
        """Maximum cost, in millionths."""
        return self.price.most(self.asked.prompt_tokens, self.asked.most_tokens)


class Spent(NamedTuple):
    """Actual usage of a request.

    Attributes:
        outcome: ``stop``, ``length``, ``abort``, ``error``, or ``lost`` with the daemon.
        prompt_tokens: tokens of its prompts.
        cached_tokens: those of them found in the prefix cache.
        completion_tokens: tokens generated, over all choices.
        queue_ms: time in the engine's queue; None if it never ran.
        first_ms: time to the first token; None without any.
        total_ms: time to its end.
        engine_seconds: engine time, by its share of the tokens of each step.
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
        """Prompt and completion tokens."""
        return self.prompt_tokens + self.completion_tokens


class Settlement(NamedTuple):
    """A request that has ended; ``spent`` is None for one that never ran and leaves no row."""

    entry: LedgerEntry
    spent: Spent | None
