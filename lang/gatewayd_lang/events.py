"""Parser of server-sent events from arbitrary pieces of bytes: only their ``data:`` lines.

These servers send one JSON document per line, so an event never spans two of them. The daemon's
command line uses it, too.
"""

from __future__ import annotations

DONE = b"[DONE]"


class EventReader:
    """Reassembles the lines of one stream."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        r"""Add a piece and return the payloads that it completes.

        ``feed(b'data: {"a"')`` is ``[]``; then ``feed(b': 1}\n\n')`` is ``[b'{"a": 1}']``.
        """
        lines = (self._rest + piece).split(b"\n")
        # The part after the last line end, empty if the piece ends with one.
        self._rest = lines.pop()
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
