"""Server-sent events out of arbitrary pieces of bytes: their ``data:`` lines, nothing else.

These servers send one JSON document per line, so an event never spans two of them. The daemon's
command line reads its streams with this, too.
"""

from __future__ import annotations

DONE = b"[DONE]"


class EventReader:
    """Collects the pieces of one stream."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        r"""Take a piece as it came and give the payloads that it completes.

        ``feed(b'data: {"a"')`` is ``[]``; then ``feed(b': 1}\n\n')`` is ``[b'{"a": 1}']``.
        """
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
