"""Request limits of tenants, enforced on every route before the body is read, and on batch lines.

They are independent of the request's content; limits on tokens and budgets are enforced by the
pipeline, after the prompt has been encoded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from gatewayd.errors import RateLimited
from gatewayd.fairness.fair_queue import set_current_tenant
from gatewayd.http.asgi import App, Receive, Scope, Send
from gatewayd.http.bodies import BodyBudget, attach_body_budget
from gatewayd.http.server.client_address import queue_name
from gatewayd.http.server.start_scheduler import StartScheduler
from gatewayd.tenants.limits import ConcurrencySlot, set_current_slot
from gatewayd.tenants.principal import IN_SCOPE, Principal, set_current_principal

if TYPE_CHECKING:
    from gatewayd.tenants.account import TenantAccount

_CANCELS = "/cancel"
"""Path suffix of POST requests that are as cheap as reads and must work at any limit."""


class RequestGate:
    """Middleware between authentication and the routes that enforces request limits.

    Args:
        routes: the app to call with accepted requests.
        endpoint: returns the app that would answer, to label refused requests.
        bodies: memory budget of request bodies.
    """

    def __init__(
        self, routes: App, endpoint: Callable[[Scope], App | None], bodies: BodyBudget
    ) -> None:
        self._routes = routes
        self._endpoint = endpoint
        self._bodies = bodies
        self._start_scheduler = StartScheduler()
        self.num_refused = 0
        """Requests refused, since the start."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Accept or refuse a request, synchronously.

        Raises:
            RateLimited: its tenant has too many requests.
        """
        principal: Principal | None = scope.get(IN_SCOPE)
        if principal is None:  # a health check
            return self._routes(scope, receive, send)
        set_current_principal(principal)
        attach_body_budget(scope, self._bodies)
        account, slot = principal.account, None
        if account is None:
            # All clients are one tenant, so schedule round-robin by subscriber.
            client = scope.get("client")
            whose = queue_name(client[0]) if client else principal.tenant
        else:
            whose = principal.tenant
            if account.counts_requests:
                slot = self._arrive(account, scope)
        set_current_slot(slot)
        set_current_tenant(whose)
        starts_now = self._start_scheduler.may_start()
        # Fast path: no coroutine of its own around the route.
        if starts_now and slot is None:
            return self._routes(scope, receive, send)
        return self._serve(None if starts_now else whose, slot, scope, receive, send)

    def count_refused(self, principal: Principal, scope: Scope) -> None:
        """Count a request that is refused before it reaches the gate.

        Raises:
            RateLimited: its tenant has too many requests; takes precedence over the refusal.
        """
        account = principal.account
        if account is not None and account.counts_requests:
            # Counts for the rate only: the concurrency slot is free again.
            self._arrive(account, scope).release()

    def _arrive(self, account: TenantAccount, scope: Scope) -> ConcurrencySlot:
        try:
            return account.acquire_slot(is_read=_is_read(scope))
        except RateLimited:
            self.num_refused += 1
            # Routing comes later, but metrics label refusals by endpoint as well.
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
        """Serve a request that must wait for the start scheduler, or holds a concurrency slot."""
        try:
            if waits is not None:
                await self._start_scheduler.wait(waits)
            await self._routes(scope, receive, send)
        finally:
            if slot is not None:
                slot.release()


def _is_read(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["method"] != "POST" or path.endswith(_CANCELS)
