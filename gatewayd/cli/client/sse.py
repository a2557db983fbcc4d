"""Server-sent events out of arbitrary pieces of bytes.

Reads ``data:`` lines only: these servers send one JSON document per line, so an event never
spans two of them. Comments, names and blank lines are skipped.
"""

from __future__ import annotations

DONE = b"[DONE]"


class SseReader:
    """Collects the pieces of one stream."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        r"""Take a piece as it came from the network and give the payloads it completes.

        ``feed(b'data: {"a"')`` is ``[]``; then ``feed(b': 1}\n\n')`` is ``[b'{"a": 1}']``.
        """
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
