"""Puts on record what operators do to a running daemon, before they are answered."""

from __future__ import annotations

from typing import Any, Protocol

from gatewayd.admin.peer import peer_in
from gatewayd.errors import GatewayError, StoreUnavailable
from gatewayd.http.asgi import Scope

_MOST_LETTERS = 256


class Recorder(Protocol):
    """Who keeps the audit."""

    async def note(self, actor: str, action: str, target: str, detail: dict[str, Any]) -> None:
        """Put a change on record that was made outside of the store."""


class Record:
    """Of one daemon.

    Args:
        recorder: keeps it.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    async def __call__(self, scope: Scope, action: str, target: str, **detail: Any) -> None:  # noqa: ANN401 - JSON
        """Put on record that whoever sent a request did something.

        Raises:
            StoreUnavailable: it was done, and is not on record.
        """
        try:
            actor = str(peer_in(scope))
            await self._recorder.note(actor, action, target[:_MOST_LETTERS], detail)
        except GatewayError as error:
            raise StoreUnavailable(
                f"it was done, and cannot be put on record: {error.message}"
            ) from error
