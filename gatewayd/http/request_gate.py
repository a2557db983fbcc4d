"""The gate of a tenant's requests: every route, before a body is read, and every line of a batch.

It knows nothing of what is asked; tokens and budgets are counted in the pipeline, which cannot know
them before a prompt is encoded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gatewayd.errors import RateLimited
from gatewayd.fair_queue import work_on_behalf_of
from gatewayd.http.asgi import App, Receive, Scope, Send
from gatewayd.http.bodies import Bodies, has_bodies
from gatewayd.tenants.limits import Slot, work_in
from gatewayd.tenants.principal import IN_SCOPE, Principal, work_for

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

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Let a request through or refuse it, before anything is awaited.

        Raises:
            RateLimited: its tenant has too many.
        """
        principal: Principal | None = scope.get(IN_SCOPE)
        if principal is None:  # a health check
            return self._routes(scope, receive, send)
        work_for(principal)
        has_bodies(scope, self._bodies)
        account, slot = principal.account, None
        if account is None:
            # Everybody is one tenant: take turns by addresses.
            client = scope.get("client")
            work_on_behalf_of(client[0] if client else principal.tenant)
            return self._routes(scope, receive, send)
        work_on_behalf_of(principal.tenant)
        if account.counts_requests:
            try:
                slot = account.arrive(is_read=_is_read(scope))
            except RateLimited:
                scope["endpoint"] = self._endpoint(scope)
                raise
        work_in(slot)
        answer = self._routes(scope, receive, send)
        return answer if slot is None else _holding(slot, answer)


async def _holding(slot: Slot, answer: Awaitable[None]) -> None:
    try:
        await answer
    finally:
        slot.let_go()


def _is_read(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["method"] != "POST" or path.endswith(_CANCELS)
