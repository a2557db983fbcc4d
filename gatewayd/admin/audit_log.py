"""Puts on record what operators do to a running daemon, before they are answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from gatewayd.admin.peer import peer_in
from gatewayd.errors import GatewayError, StoreUnavailable
from gatewayd.http.asgi import Scope

_log = logging.getLogger(__name__)
_MOST_LETTERS = 256


class _NotNoted(Exception):
    """There is no such row; the sentence says why."""


class AuditRecorder(Protocol):
    """Who keeps the audit."""

    async def note(self, actor: str, action: str, target: str, detail: dict[str, Any]) -> None:
        """Put a change on record that was made outside of the store."""

    def has_tenant(self, name: str) -> bool:
        """Whether there is one of that name, or was since the start."""


class AuditRecord:
    """Of one daemon.

    Args:
        recorder: keeps it.
    """

    def __init__(self, recorder: AuditRecorder) -> None:
        self._recorder = recorder

    async def __call__(self, scope: Scope, action: str, target: str, **detail: Any) -> None:  # noqa: ANN401 - JSON
        """Put on record that whoever sent a request did something.

        Raises:
            StoreUnavailable: it was done, and is not on record.
        """
        try:
            await self._note(scope, action, target, detail)
        except _NotNoted as error:
            raise StoreUnavailable(
                f"the action was done, but its audit record cannot be written: {error}"
            ) from error

    @asynccontextmanager
    async def around(
        self,
        scope: Scope,
        action: str,
        target: str,
        **detail: Any,  # noqa: ANN401 - JSON
    ) -> AsyncIterator[dict[str, Any]]:
        """Put on record that something begins which may be cut, and what has come of it.

        Whoever does it adds to the detail what there is to tell of its end. A store that takes no
        row stops nobody.

        Raises:
            StoreUnavailable: it was done, and is not on record.
        """
        try:
            await self._note(scope, f"{action}.begin", target, detail)
        except _NotNoted as error:
            _log.error("cannot write audit record for the start of %s: %s", action, error)
        told: dict[str, Any] = {}
        try:
            yield told
        except (Exception, asyncio.CancelledError) as failure:
            why = getattr(failure, "message", str(failure)) or type(failure).__name__
            try:
                await self._note(scope, f"{action}.failed", target, {"why": why[:_MOST_LETTERS]})
            except _NotNoted as error:
                _log.error("cannot write audit record for the failure of %s: %s", action, error)
            raise
        await self(scope, action, target, **detail, **told)

    async def _note(self, scope: Scope, action: str, target: str, detail: dict[str, Any]) -> None:
        actor = str(peer_in(scope))
        try:
            await self._recorder.note(actor, action, target[:_MOST_LETTERS], detail)
        except GatewayError as error:
            raise _NotNoted(error.message) from error
        except OSError as error:  # the row is there, and the end of the audit beside the store not
            raise _NotNoted(str(error)) from error

    def knows(self, tenant: str) -> bool:
        """Whether there is a tenant that something can be done to."""
        return self._recorder.has_tenant(tenant)
