"""Encoding of response events: numbered, live or replayed from a stored response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gatewayd.http.asgi import encode_json
from gatewayd.resources.responses.output import Event, Output
from gatewayd.resources.responses.records import StoredResponse

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
)


class EventEncoder:
    """Encodes events with consecutive numbers.

    Args:
        after: number of the last event to skip; -1 for none.
    """

    def __init__(self, after: int = -1) -> None:
        self._next = 0
        self._after = after

    def opening(self, body: dict[str, Any]) -> bytes:
        """The two initial events; empty if they were emitted already."""
        return b"" if self._next else b"".join(self.first(body))

    def first(self, body: dict[str, Any]) -> list[bytes]:
        """The two initial events, one by one."""
        kinds = ("response.created", "response.in_progress")
        return [self.event({"type": kind, "response": body}) for kind in kinds]

    def event(self, event: Event) -> bytes:
        """Encode an event; empty if it is skipped."""
        number = self._next
        self._next += 1
        # Not encoded, but counted: later events keep their numbers.
        if number <= self._after:
            return b""
        numbered = encode_json({**event, "sequence_number": number})
        return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), numbered)

    def skip_to_last(self) -> None:
        """Account for the numbers of lost events."""
        self._next = max(self._next, self._after + 1)


def initial_body(body: dict[str, Any]) -> dict[str, Any]:
    """The response object at its start, without output."""
    nothing = dict.fromkeys(("completed_at", "error", "incomplete_details", "usage"))
    return {**body, **nothing, "status": "in_progress", "output": []}


def replay(kept: StoredResponse) -> Iterator[Event]:
    """Replay the events of a stored response, without the initial and the final ones."""
    output, said = Output(), kept.body["output"]
    for at, item in enumerate(said):
        is_broken = kept.is_broken and at == len(said) - 1
        cuts = None if kept.cuts is None else kept.cuts[at]
        yield from output.replay(item, cuts, is_broken=is_broken)


def end_of(body: dict[str, Any]) -> Event:
    """The final event of a response that has ended."""
    # Clients wait for one of three final events, none of which means cancelled.
    status = "incomplete" if body["status"] == "cancelled" else body["status"]
    return {"type": f"response.{status}", "response": body}
