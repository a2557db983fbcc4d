"""Events for observers, per request and per process; never per token."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DaemonInfo:
    """Daemon that has started.

    Attributes:
        version: of the daemon.
        model: the served model's name.
    """

    version: str
    model: str


@dataclass(frozen=True, slots=True)
class RequestAdmitted:
    """Request that passed validation and was sent to an engine.

    Attributes:
        request_id: the gateway's id.
        tenant: name of the tenant; empty without tenants.
        endpoint: the route, such as ``/v1/chat/completions``.
        prompt_tokens: prompt length.
        priority: ``Priority`` as a number.
    """

    request_id: str
    tenant: str
    endpoint: str
    prompt_tokens: int
    priority: int


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """End of a request, for any reason; sent exactly once per ``RequestAdmitted``.

    Attributes:
        request_id: the gateway's id.
        tenant: name of the tenant; empty without tenants.
        outcome: ``stop``, ``length``, ``abort`` or ``error``.
        prompt_tokens: prompt length.
        cached_tokens: prompt tokens found in the prefix cache.
        completion_tokens: tokens generated.
        ttft_seconds: time from arrival to the first token; None if there was none.
        seconds: time from arrival to the end.
    """

    request_id: str
    tenant: str
    outcome: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_seconds: float | None
    seconds: float
