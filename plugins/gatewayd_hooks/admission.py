"""Admission: whether a request is accepted or rejected at once. Called in the gateway, per request.

A rejection costs the client milliseconds; a deadline that cannot be met costs it the whole wait.
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
    """Properties of an incoming request.

    Attributes:
        prompt_tokens: prompt length, at least 1.
        max_tokens: limit on each answer's tokens.
        num_choices: number of answers requested.
        priority: ``Priority`` as a number.
        tenant: name of the tenant; empty without tenants.
        deadline: seconds from now by which the first token is wanted; None if not specified.
    """

    prompt_tokens: int
    max_tokens: int
    num_choices: int
    priority: int
    tenant: str
    deadline: float | None


@dataclass(frozen=True, slots=True)
class Load:
    """Requests queued in the daemon and the engines when a request arrives, without that request.

    Attributes:
        requests: number of waiting requests.
        tokens: prompt tokens of the waiting requests.
        limit_requests: maximum of ``requests``.
        limit_tokens: maximum of ``tokens``.
        urgent_tokens: the part of ``tokens`` in the request's priority class and in more urgent
            ones.
        tenant_requests: the tenant's own part of ``requests``.
        tenant_tokens: the tenant's own part of ``tokens``.
        num_tenants: tenants with waiting requests, always counting this one.
        num_replicas: replicas that can serve now.
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
    """Rejection of a request, with its reason and what the client can do.

    Attributes:
        reason: machine-readable, ``[a-z0-9_]+``.
        message: human-readable sentence.
        retry_after: seconds after which to retry, above 0.
        is_tenants: whether the tenant itself caused it: then the answer is 429, else 503.
        offers: changes to the request, as fields and values, with which it would be accepted now.
            The gateway checks each changed request before it offers it, and by itself also tries
            the class ``batch`` and shorter answers; of these, ``max_tokens`` is tried first.
    """

    reason: str
    message: str
    retry_after: float
    is_tenants: bool = False
    offers: tuple[Mapping[str, Any], ...] = field(default=())


class AdmissionStrategy(Strategy, Protocol):
    """Accepts or rejects requests; the limits of ``[queue]`` apply in any case."""

    def open(self, resources: GatewayResources) -> None:
        """Read the name of the served model."""

    def admit(self, request: AdmissionRequest, load: Load) -> Refusal | None:
        """Return None to accept the request, or the reason for rejecting it."""

    def began(self, request: AdmissionRequest, load: Load, seconds: float) -> None:
        """Record that an accepted request produced its first token.

        Args:
            request: as in ``admit``.
            load: as in ``admit``.
            seconds: time from arrival to the first token, above 0.
        """
