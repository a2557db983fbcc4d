"""How much more may wait, of all requests or of one tenant's; answers tell it in headers."""

from __future__ import annotations

from typing import NamedTuple


class QueueCapacity(NamedTuple):
    """What a queue, or a tenant's limits, can take before requests are refused.

    Attributes:
        limit_requests: that may wait.
        remaining_requests: of those, how many more.
        limit_tokens: of their prompts.
        remaining_tokens: of those, how many more.
        reset_seconds: that the last admitted request has waited, 0 while nothing waits; until the
            tenant's limits are whole again, if these are told.
    """

    limit_requests: int
    remaining_requests: int
    limit_tokens: int
    remaining_tokens: int
    reset_seconds: float
