"""Log context: the request that the engine works on, where it works on a single one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Names = tuple[str, str]
"""The gateway's request id, and the one returned to the client; empty where unknown."""

NO_NAMES: Names = ("", "")
_current: ContextVar[Names] = ContextVar("about", default=NO_NAMES)


def current() -> dict[str, str]:
    """Return the fields that log lines get; none outside of a single request."""
    ours, external = _current.get()
    if not ours:
        return {}
    return {"request_id": ours} | ({} if external in ("", ours) else {"x_request_id": external})


@contextmanager
def about(names: Names) -> Iterator[None]:
    """Attribute log lines within the context to a request."""
    before = _current.set(names)
    try:
        yield
    finally:
        _current.reset(before)
