"""Remaining capacity of the queue or of a tenant's limits, for response headers."""

from __future__ import annotations

from typing import NamedTuple


class QueueCapacity(NamedTuple):
    """Remaining capacity before requests are refused.

    Attributes:
        limit_requests: maximum of waiting requests.
        remaining_requests: requests that may still arrive.
        limit_tokens: maximum of their prompt tokens.
        remaining_tokens: prompt tokens that may still arrive.
        reset_seconds: for the queue, the wait of the last admitted request, or 0 while nothing
            waits; for a tenant, the time until its limits are fully restored.
    """

    limit_requests: int
    remaining_requests: int
    limit_tokens: int
    remaining_tokens: int
    reset_seconds: float
