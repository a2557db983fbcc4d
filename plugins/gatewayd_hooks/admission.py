"""Admission: whether a request is taken on or refused at once. In the gateway, per request.

A refusal costs its client milliseconds; a promise that cannot be kept costs it the whole wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """What is known of a request that has come.

    Attributes:
        prompt_tokens: of its prompt, at least 1.
        max_tokens: that each answer may have.
        num_choices: answers that are wanted.
        priority: ``Priority`` as a number.
        tenant: whose it is; empty without tenants.
        deadline: seconds from now to the first token that is wanted; None for no wish.
    """

    prompt_tokens: int
    max_tokens: int
    num_choices: int
    priority: int
    tenant: str
    deadline: float | None


@dataclass(frozen=True, slots=True)
class Load:
    """What waits in the daemon and in the engines' queues when a request comes, without it.

    Attributes:
        requests: that wait.
        tokens: of their prompts.
        limit_requests: that may wait.
        limit_tokens: of their prompts.
        urgent_tokens: of ``tokens``, those of the request's class and of more urgent ones.
        tenant_requests: of ``requests``, the tenant's own.
        tenant_tokens: of ``tokens``, the tenant's own.
        num_tenants: that have requests waiting, this one counted in any case.
        num_replicas: that can serve now.
    """

    requests: int
    tokens: int
    limit_requests: int
    limit_tokens: int
    urgent_tokens: int
    tenant_requests: int
    tenant_tokens: int
    num_tenants: int
    num_replicas: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not taken on, and what its client can do.

    Attributes:
        reason: for programs, ``[a-z0-9_]+``.
        message: a sentence for people.
        retry_after: seconds after which to try again, above 0.
        is_tenants: whether it is the tenant's own doing: then the answer is 429, else 503.
        offers: changes of the request with which it would be taken on now: fields and values.
            The gateway asks about each changed request before it offers it, and about the class
            ``batch`` and shorter answers by itself; ``max_tokens`` of these is tried first.
    """

    reason: str
    message: str
    retry_after: float
    is_tenants: bool = False
    offers: tuple[Mapping[str, Any], ...] = field(default=())


class AdmissionStrategy(Strategy, Protocol):
    """Takes requests on or refuses them; the caps of ``[queue]`` hold in any case."""

    def open(self, resources: GatewayResources) -> None:
        """Learn what is served."""

    def admit(self, request: AdmissionRequest, load: Load) -> Refusal | None:
        """Decide; None takes it on."""

    def began(self, request: AdmissionRequest, load: Load, seconds: float) -> None:
        """A request that was taken on got its first token, that long after it came.

        Args:
            request: as in ``admit``.
            load: as in ``admit``.
            seconds: above 0.
        """
