"""What observers are told, per request and per process; never per token."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DaemonInfo:
    """The daemon that has started.

    Attributes:
        version: of the daemon.
        model: the served model's name.
    """

    version: str
    model: str


@dataclass(frozen=True, slots=True)
class RequestAdmitted:
    """A request passed validation and was sent to an engine.

    Attributes:
        request_id: the gateway's id.
        tenant: whose it is; empty without tenants.
        endpoint: the route, such as ``/v1/chat/completions``.
        prompt_tokens: length of its prompt.
        priority: ``Priority`` as a number.
    """

    request_id: str
    tenant: str
    endpoint: str
    prompt_tokens: int
    priority: int


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """A request ended, however it ended; told exactly once per ``RequestAdmitted``.

    Attributes:
        request_id: the gateway's id.
        tenant: whose it is; empty without tenants.
        outcome: ``stop``, ``length``, ``abort`` or ``error``.
        prompt_tokens: length of its prompt.
        cached_tokens: prompt tokens found in the prefix cache.
        completion_tokens: tokens generated.
        ttft_seconds: from arrival to the first token; None if there was none.
        seconds: from arrival to the end.
    """

    request_id: str
    tenant: str
    outcome: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_seconds: float | None
    seconds: float
