"""What a request waits for before it is sent to an engine, noted where it happens.

The request that a task works on is known by a context variable, so that what checks grammars or
waits for a model need not be handed it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec


class Span(msgspec.Struct, frozen=True, gc=False):
    """Some time, by ``time.monotonic``; due to a strategy, if one is named."""

    cause: str
    begin: float
    end: float
    strategy: str = ""


class RequestOutline(NamedTuple):
    """What a trace keeps of a request: timers of its connection have it, and need no prompts.

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
    """One request, from its arrival.

    Attributes:
        answered_id: the ``x-request-id`` of its answer.
        request_id: the gateway's own.
        arrival: when it came, by ``time.monotonic``.
        spans: in the order of their ends.
        asked: what it has come to, once that is known.
        is_sent: whether that has come to the engines.
    """

    answered_id: str
    request_id: str
    arrival: float = field(default_factory=time.monotonic)
    spans: list[Span] = field(default_factory=list)
    asked: RequestOutline | None = None
    is_sent: bool = False


_current: ContextVar[RequestTrace | None] = ContextVar("trace", default=None)


def begin(answered_id: str, request_id: str = "") -> None:
    """A request has come; this task works on it from now on."""
    _current.set(RequestTrace(answered_id, request_id or answered_id))


def current() -> RequestTrace | None:
    """Of the request that this task works on."""
    return _current.get()


@contextmanager
def about(trace: RequestTrace | None) -> Iterator[None]:
    """What is logged within is about this request, whoever's task it is."""
    before = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(before)


class TimedSpan:
    """What happens within is due to a cause, and to a strategy, if one is named."""

    __slots__ = ("_began", "_cause", "_strategy", "_trace")

    def __init__(self, cause: str, strategy: str = "") -> None:
        self._cause, self._strategy = cause, strategy

    def __enter__(self) -> None:
        """It begins."""
        self._trace, self._began = _current.get(), time.monotonic()

    def __exit__(self, *error: object) -> None:
        """It ends, however it does."""
        if self._trace is not None:
            span = Span(self._cause, self._began, time.monotonic(), self._strategy)
            self._trace.spans.append(span)
