"""Audits actions of operators on a running daemon, before they are answered."""

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


class _NotRecorded(Exception):
    """The audit row was not written; the message has the reason."""


class AuditRecorder(Protocol):
    """Writer of the audit log."""

    async def record_change(
        self, actor: str, action: str, target: str, detail: dict[str, Any]
    ) -> None:
        """Record a change that was made outside of the store."""

    def has_tenant(self, name: str) -> bool:
        """Whether the tenant exists, or existed since the start."""


class AuditRecord:
    """Audits actions of operators.

    Args:
        recorder: writes the audit log.
    """

    def __init__(self, recorder: AuditRecorder) -> None:
        self._recorder = recorder

    async def __call__(self, scope: Scope, action: str, target: str, **detail: Any) -> None:  # noqa: ANN401 - JSON
        """Record an action of the request's peer.

        Raises:
            StoreUnavailable: the action was done, but is not recorded.
        """
        try:
            await self._write(scope, action, target, detail)
        except _NotRecorded as error:
            raise StoreUnavailable(
                f"the action was done, but its audit record cannot be written: {error}"
            ) from error

    @asynccontextmanager
    async def around_action(
        self,
        scope: Scope,
        action: str,
        target: str,
        **detail: Any,  # noqa: ANN401 - JSON
    ) -> AsyncIterator[dict[str, Any]]:
        """Record the start of an interruptible action, then its result or failure.

        The caller adds details of the result to the yielded dict. A failure to record the start
        does not prevent the action.

        Raises:
            StoreUnavailable: the action was done, but is not recorded.
        """
        try:
            await self._write(scope, f"{action}.begin", target, detail)
        except _NotRecorded as error:
            _log.error("cannot write audit record for the start of %s: %s", action, error)
        told: dict[str, Any] = {}
        try:
            yield told
        # Cancelled handlers, too: the end of the daemon may interrupt an action.
        except (Exception, asyncio.CancelledError) as failure:
            why = getattr(failure, "message", str(failure)) or type(failure).__name__
            try:
                await self._write(scope, f"{action}.failed", target, {"why": why[:_MOST_LETTERS]})
            except _NotRecorded as error:
                _log.error("cannot write audit record for the failure of %s: %s", action, error)
            raise
        # Outside of the ``try``: an action that was done must not be recorded as failed.
        await self(scope, action, target, **detail, **told)

    async def _write(self, scope: Scope, action: str, target: str, detail: dict[str, Any]) -> None:
        actor = str(peer_in(scope))
        try:
            await self._recorder.record_change(actor, action, target[:_MOST_LETTERS], detail)
        except GatewayError as error:
            raise _NotRecorded(error.message) from error
        except OSError as error:  # the row was written, but not the head file beside the store
            raise _NotRecorded(str(error)) from error

    def has_tenant(self, tenant: str) -> bool:
        """Whether the tenant can be the target of an action."""
        return self._recorder.has_tenant(tenant)
