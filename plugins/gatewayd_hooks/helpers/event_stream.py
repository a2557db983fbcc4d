"""Server-sent events of an upstream, parsed line by line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

MOST_EVENT_BYTES = 8 << 20
"""Maximum of one event's data over all its lines."""


class ServerEvent(NamedTuple):
    """One event.

    Attributes:
        name: its type; empty if it has none.
        data: all its data lines.
    """

    name: str
    data: bytes


async def server_events(lines: AsyncIterator[bytes]) -> AsyncIterator[ServerEvent]:
    """Parse a stream of events; comments and other fields are skipped.

    An event that the end of the stream cuts is not returned, as the standard has it.

    Args:
        lines: of the body, without their ends.

    Raises:
        ValueError: an event is too long.
    """
    name, size = "", 0
    data: list[bytes] = []
    async for line in lines:
        if not line:
            if data:
                yield ServerEvent(name, b"\n".join(data))
            name, data, size = "", [], 0
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            size += len(value)
            if size > MOST_EVENT_BYTES:
                raise ValueError(f"an event has more than {MOST_EVENT_BYTES} bytes")
            data.append(value)
        elif field == b"event":
            name = value.decode(errors="replace")
