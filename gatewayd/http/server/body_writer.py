"""ASGI extension of the edge that writes a piece of a streamed response without a coroutine.

A streamed answer has a piece for each token: ``send`` costs several times what writing it does.
"""

from __future__ import annotations

from typing import Protocol

from gatewayd.http.asgi import Scope

EXTENSION = "gatewayd.body_writer"


class BodyWriter(Protocol):
    """Writer of the response's body; the response is started and completed with ``send``."""

    @property
    def can_write_body(self) -> bool:
        """Whether pieces can be written now: ``send`` would wait for nothing."""

    def write_body(self, piece: bytes) -> None:
        """Write a piece that is not empty, while ``can_write_body``."""


def body_writer(scope: Scope) -> BodyWriter | None:
    """Return the writer of a request's response; None under servers without the extension."""
    writer: BodyWriter | None = scope.get("extensions", {}).get(EXTENSION)
    return writer
