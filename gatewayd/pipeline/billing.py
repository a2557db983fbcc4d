"""Billing of requests: reserves the maximum before a run, charges the actual usage after it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from gatewayd.pipeline.accounting import first_token
from gatewayd.pipeline.choice import Choice
from gatewayd.pipeline.settlement import AbortedPrompt
from gatewayd.pipeline.work import Work
from gatewayd.tenants.account import TenantAccount
from gatewayd.tenants.billing.costs import RequestedCost, Spent

_SALT_BYTES = 16


def requested_cost(work: Work) -> RequestedCost:
    """Return the maximum cost of a request: its prompt tokens and all tokens it may generate."""
    n = work.num_choices
    return RequestedCost(
        work.request_id,
        work.principal.tenant,
        work.principal.key_id,
        work.endpoint,
        work.charged_as or work.model,
        sum([len(request.prompt) for request in work.requests]),
        sum([n * request.params.max_tokens for request in work.requests]),
        n * len(work.requests),
        # The Responses API names it differently; its request is converted to a chat's.
        "max_output_tokens" if work.endpoint == "/v1/responses" else work.requests[0].length_param,
    )


def with_tenant(work: Work, account: TenantAccount) -> Work:
    """Return the request with tenant, weight and cache salt set on every prompt for the engine."""
    requests = [
        msgspec.structs.replace(
            request,
            tenant=account.tenant,
            weight=account.terms.weight,
            salt=_salted(account.salt, request.salt),
        )
        for request in work.requests
    ]
    return msgspec.structs.replace(work, requests=requests)


def delivered_usage(
    choices: Sequence[Choice], cached: int, work: Work, outcome: str, now: float
) -> Spent:
    """Return the usage of an ended request by delivered tokens, all prompts counted in full.

    Args:
        choices: of all its prompts.
        cached: tokens of its prompts that were prefix-cache hits.
        work: the request.
        outcome: of the request.
        now: time at which it ended, by the pipeline's clock.
    """
    first = first_token(choices)
    queues = [one.queue_seconds for one in choices if one.queue_seconds is not None]
    return Spent(
        outcome=outcome,
        prompt_tokens=sum([len(request.prompt) for request in work.requests]),
        cached_tokens=cached,
        completion_tokens=sum([choice.completion_tokens for choice in choices]),
        queue_ms=round(1000 * max(queues)) if queues else None,
        first_ms=None if first is None else round(1000 * (first - work.arrival)),
        total_ms=round(1000 * (now - work.arrival)),
    )


def aborted_prompts(choices: Sequence[Choice], work: Work, num_prompts: int) -> list[AbortedPrompt]:
    """Return the sent prompts of a request that ended before its answer was complete."""
    n, discards = work.num_choices, work.options.discard
    return [
        AbortedPrompt.of(
            len(request.prompt),
            choices[at * n : (at + 1) * n],
            # Discarded tokens are not charged.
            0 if discards else request.params.max_tokens,
        )
        for at, request in enumerate(work.requests[:num_prompts])
    ]


def _salted(tenant: bytes, client: bytes) -> bytes:
    """Combine the tenant's secret salt with the client's ``cache_salt``."""
    if not tenant:
        return client
    # Keyed, so that the result of no `cache_salt` is predictable to another tenant.
    return blake2b(client, key=tenant, digest_size=_SALT_BYTES).digest()
