"""Which request the engine works on, where it works on one alone: for its log lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Names = tuple[str, str]
"""The gateway's own id, and what the client is told; empty where the gateway said none."""

NOBODY: Names = ("", "")
_current: ContextVar[Names] = ContextVar("about", default=NOBODY)


def current() -> dict[str, str]:
    """What a log line says of it; nothing where it works on many, or on none."""
    ours, told = _current.get()
    if not ours:
        return {}
    return (
        {"request_id": ours} if told in ("", ours) else {"request_id": ours, "x_request_id": told}
    )


@contextmanager
def about(names: Names) -> Iterator[None]:
    """What is logged within is about this request."""
    before = _current.set(names)
    try:
        yield
    finally:
        _current.reset(before)
