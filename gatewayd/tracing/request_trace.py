"""Trace of a request: timed spans before it is sent to an engine.

The trace of the current task's request is in a context variable, so that code such as grammar
checks need not pass it along.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from gatewayd.tracing.route_record import RouteTrace


class Span(msgspec.Struct, frozen=True, gc=False):
    """Time span by ``time.monotonic``, with the responsible strategy, if any."""

    cause: str
    begin: float
    end: float
    strategy: str = ""


class RequestOutline(NamedTuple):
    """Sizes of a request; a trace refers to them instead of the request, which holds its prompts.

    Attributes:
        priority: ``Priority`` as a number.
        prompt_tokens: of all its prompts.
        num_choices: of all its prompts together.
    """

    priority: int
    prompt_tokens: int
    num_choices: int


@dataclass(slots=True, eq=False)
class RequestTrace:
    """Trace of one request, from its arrival.

    Attributes:
        answered_id: the ``x-request-id`` of its response.
        request_id: the gateway's own.
        arrival: time of its arrival, by ``time.monotonic``.
        spans: in the order of their ends.
        asked: its outline, once it is validated.
        is_sent: whether it has been submitted to the engines.
        route: latest decision of a route about it; None without a route.
        model: name of the latest model that it was started at; empty before.
    """

    answered_id: str
    request_id: str
    arrival: float = field(default_factory=time.monotonic)
    spans: list[Span] = field(default_factory=list)
    asked: RequestOutline | None = None
    is_sent: bool = False
    route: RouteTrace | None = None
    model: str = ""


_current: ContextVar[RequestTrace | None] = ContextVar("request_trace", default=None)


def start_trace(answered_id: str, request_id: str = "") -> None:
    """Start the trace of a request and make it the current task's."""
    _current.set(RequestTrace(answered_id, request_id or answered_id))


def current() -> RequestTrace | None:
    """Return the trace of the current task's request."""
    return _current.get()


@contextmanager
def log_context(trace: RequestTrace | None) -> Iterator[None]:
    """Attribute records logged within to the trace's request, regardless of the task."""
    before = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(before)


class TimedSpan:
    """Context manager that records its duration as a span of the current trace."""

    __slots__ = ("_began", "_cause", "_strategy", "_trace")

    def __init__(self, cause: str, strategy: str = "") -> None:
        self._cause, self._strategy = cause, strategy

    def __enter__(self) -> None:
        """Start the span."""
        self._trace, self._began = _current.get(), time.monotonic()

    def __exit__(self, *error: object) -> None:
        """Record the span, also after an exception."""
        if self._trace is not None:
            span = Span(self._cause, self._began, time.monotonic(), self._strategy)
            self._trace.spans.append(span)
