"""What a tenant is charged for: the most before a request runs, what it was after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

import msgspec

from gatewayd.pipeline.accounting import first_token
from gatewayd.pipeline.choice import Choice
from gatewayd.pipeline.settlement import AbortedPrompt
from gatewayd.pipeline.work import Work
from gatewayd.tenants.account import TenantAccount
from gatewayd.tenants.billing.costs import RequestedCost, Spent

_SALT_BYTES = 16


def asked_of(work: Work) -> RequestedCost:
    """What a request may take: its prompts, and all that it may generate."""
    n = work.num_choices
    return RequestedCost(
        work.request_id,
        work.principal.tenant,
        work.principal.key_id,
        work.endpoint,
        work.model,
        sum([len(request.prompt) for request in work.requests]),
        sum([n * request.params.max_tokens for request in work.requests]),
        n * len(work.requests),
        # A response's is made of a conversation's.
        "max_output_tokens" if work.endpoint == "/v1/responses" else work.requests[0].length_param,
    )


def owned(work: Work, account: TenantAccount) -> Work:
    """The same with its owner on every prompt, by which the engine tells tenants apart."""
    requests = [
        replace(
            request,
            tenant=account.tenant,
            weight=account.terms.weight,
            salt=_salted(account.salt, request.salt),
        )
        for request in work.requests
    ]
    return msgspec.structs.replace(work, requests=requests)


def spent_of(choices: Sequence[Choice], cached: int, work: Work, outcome: str, now: float) -> Spent:
    """What a request took by what its client was told, when it has ended; all prompts whole.

    Args:
        choices: of all its prompts.
        cached: tokens of its prompts, found in the prefix cache.
        work: the request.
        outcome: of it.
        now: when it ended, by the clock.
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


def lefts_of(choices: Sequence[Choice], work: Work, num_prompts: int) -> list[AbortedPrompt]:
    """The prompts of a request that ended before its answer; perhaps not all were sent."""
    n, discards = work.num_choices, work.options.discard
    return [
        AbortedPrompt.of(
            len(request.prompt),
            choices[at * n : (at + 1) * n],
            0 if discards else request.params.max_tokens,
        )
        for at, request in enumerate(work.requests[:num_prompts])
    ]


def _salted(tenant: bytes, client: bytes) -> bytes:
    """Both: the tenant's, which nobody can guess, and what its client asked for."""
    if not tenant:
        return client
    return blake2b(client, key=tenant, digest_size=_SALT_BYTES).digest()
