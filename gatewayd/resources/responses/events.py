"""Events on the wire: numbered, of a response while it comes, and again of one that is kept."""

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


class Numbers:
    """Writes events, each with its number.

    Args:
        after: the number up to which they are left out; -1 for none.
    """

    def __init__(self, after: int = -1) -> None:
        self._next = 0
        self._after = after

    def opening(self, body: dict[str, Any]) -> bytes:
        """The two events before all others; nothing if they are out."""
        return b"" if self._next else b"".join(self.first(body))

    def first(self, body: dict[str, Any]) -> list[bytes]:
        """The same, one by one."""
        kinds = ("response.created", "response.in_progress")
        return [self.event({"type": kind, "response": body}) for kind in kinds]

    def event(self, event: Event) -> bytes:
        """One event; nothing for one that is left out."""
        number = self._next
        self._next += 1
        if number <= self._after:
            return b""
        numbered = encode_json({**event, "sequence_number": number})
        return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), numbered)

    def skip_to_last(self) -> None:
        """Events that were lost have had their numbers."""
        self._next = max(self._next, self._after + 1)


def unsaid(body: dict[str, Any]) -> dict[str, Any]:
    """A response object as it began."""
    nothing = dict.fromkeys(("completed_at", "error", "incomplete_details", "usage"))
    return {**body, **nothing, "status": "in_progress", "output": []}


def told_again(kept: StoredResponse) -> Iterator[Event]:
    """What happened to a response that is over, behind its opening, but for its end."""
    output, said = Output(), kept.body["output"]
    for at, item in enumerate(said):
        is_broken = kept.is_broken and at == len(said) - 1
        cuts = None if kept.cuts is None else kept.cuts[at]
        yield from output.again(item, cuts, is_broken=is_broken)


def end_of(body: dict[str, Any]) -> Event:
    """The last event of a response that is over."""
    # Clients wait for one of three; there is none for what was cancelled.
    status = "incomplete" if body["status"] == "cancelled" else body["status"]
    return {"type": f"response.{status}", "response": body}
