"""The gate of a tenant's requests: every route, before a body is read, and every line of a batch.

It knows nothing of what is asked; tokens and budgets are counted in the pipeline, which cannot know
them before a prompt is encoded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from gatewayd.errors import RateLimited
from gatewayd.fairness.fair_queue import set_current_tenant
from gatewayd.http.asgi import App, Receive, Scope, Send
from gatewayd.http.bodies import Bodies, attach_body_budget
from gatewayd.http.server.client_address import queue_name
from gatewayd.http.server.start_scheduler import StartScheduler
from gatewayd.tenants.limits import ConcurrencySlot, set_current_slot
from gatewayd.tenants.principal import IN_SCOPE, Principal, set_current_principal

if TYPE_CHECKING:
    from gatewayd.tenants.account import TenantAccount

_CANCELS = "/cancel"
"""Ends the paths of those POST that are as cheap as a read, and must work at any limit."""


class RequestGate:
    """Stands between the key check and the routes.

    Args:
        routes: the app behind it.
        endpoint: finds who would answer, to name it where a request is refused.
        bodies: where what is received is counted.
    """

    def __init__(
        self, routes: App, endpoint: Callable[[Scope], App | None], bodies: Bodies
    ) -> None:
        self._routes = routes
        self._endpoint = endpoint
        self._bodies = bodies
        self._turns = StartScheduler()
        self.num_refused = 0
        """Since the start."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Let a request through or refuse it, before anything is awaited.

        Raises:
            RateLimited: its tenant has too many.
        """
        principal: Principal | None = scope.get(IN_SCOPE)
        if principal is None:  # a health check
            return self._routes(scope, receive, send)
        set_current_principal(principal)
        attach_body_budget(scope, self._bodies)
        account, slot = principal.account, None
        if account is None:
            # Everybody is one tenant: take turns by subscribers.
            client = scope.get("client")
            whose = queue_name(client[0]) if client else principal.tenant
        else:
            whose = principal.tenant
            if account.counts_requests:
                slot = self._arrive(account, scope)
        set_current_slot(slot)
        set_current_tenant(whose)
        is_now = self._turns.is_now()
        if is_now and slot is None:
            return self._routes(scope, receive, send)
        return self._serve(None if is_now else whose, slot, scope, receive, send)

    def count_refused(self, principal: Principal, scope: Scope) -> None:
        """Count a request that is refused before it reaches the gate.

        Raises:
            RateLimited: its tenant has too many; takes precedence over the refusal.
        """
        account = principal.account
        if account is not None and account.counts_requests:
            self._arrive(account, scope).release()

    def _arrive(self, account: TenantAccount, scope: Scope) -> ConcurrencySlot:
        try:
            return account.acquire_slot(is_read=_is_read(scope))
        except RateLimited:
            self.num_refused += 1
            scope["endpoint"] = self._endpoint(scope)
            raise

    async def _serve(
        self,
        waits: str | None,
        slot: ConcurrencySlot | None,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Serve a request that waits for a tenant's turn, or holds a slot."""
        try:
            if waits is not None:
                await self._turns.wait(waits)
            await self._routes(scope, receive, send)
        finally:
            if slot is not None:
                slot.release()


def _is_read(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["method"] != "POST" or path.endswith(_CANCELS)
