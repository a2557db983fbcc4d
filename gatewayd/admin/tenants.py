"""Routes of the admin API for tenants, keys, prices, usage and the audit."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.routing import Route

from gatewayd.admin.peer import peer_in
from gatewayd.errors import InvalidRequest
from gatewayd.http.asgi import Receive, Scope, Send, read_json_body, send_json
from gatewayd.http.methods import route
from gatewayd.http.query import query_of
from gatewayd.tenants.actions import ACTIONS, TenantAction, body_of
from gatewayd.tenants.tenancy import Tenancy

_BODY_BYTES = 64 * 1024


class ActionRoute:
    """A tenant action as an ASGI app."""

    def __init__(self, action: TenantAction, tenancy: Tenancy) -> None:
        self._action = action
        self._tenancy = tenancy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the action for the peer."""
        given: Any = None
        if self._action.method not in ("GET", "DELETE"):
            body = await read_json_body(scope, receive, _BODY_BYTES)
            try:
                given = msgspec.json.decode(body) if body else None
            except msgspec.DecodeError as error:
                raise InvalidRequest(f"the body is not JSON: {error}") from error
        # Parameters of the path win: a query must not change the target.
        params = {**query_of(scope), **scope["path_params"]}
        checked = body_of(self._action, given)
        actor = str(peer_in(scope))
        await send_json(send, await self._tenancy.act(self._action, params, checked, actor))


def tenant_routes(tenancy: Tenancy) -> list[Route]:
    """All routes of tenant actions."""
    paths = {action.path: dict[str, ActionRoute]() for action in ACTIONS}
    for action in ACTIONS:
        paths[action.path][action.method] = ActionRoute(action, tenancy)
    return [route(path, **apps) for path, apps in paths.items()]
