"""Admin routes that add models to the catalogue and remove them."""

from __future__ import annotations

from starlette.routing import Route

from gatewayd.admin.audit_log import AuditRecord
from gatewayd.admin.endpoint import AdminEndpoint, body_if_any, body_of
from gatewayd.admin.peer import peer_in
from gatewayd.daemon.served_models import ServedModels
from gatewayd.errors import InvalidRequest
from gatewayd.http.asgi import Receive, Scope
from gatewayd.wire.models import AddModelBody, ModelChanged, RemoveModelBody

_MOST_SECONDS = 3600.0


class ModelChangeRoutes:
    """Handlers of ``/admin/models/{name}``.

    Args:
        served: the models of the daemon.
        record: audits actions.
    """

    def __init__(self, served: ServedModels, record: AuditRecord) -> None:
        self._served = served
        self._record = record

    async def add(self, scope: Scope, receive: Receive) -> object:
        """Serve another model."""
        name = scope["path_params"]["name"]
        body = await body_of(scope, receive, AddModelBody)
        path = body.table.get("path")
        async with self._record.around_action(scope, "model.add", name, path=str(path)[:256]):
            await self._served.add(name, body.table, str(peer_in(scope)))
        return ModelChanged(name, "added")

    async def remove(self, scope: Scope, receive: Receive) -> object:
        """Stop serving a model."""
        name = scope["path_params"]["name"]
        seconds = (await body_if_any(scope, receive, RemoveModelBody)).seconds
        if not 0 <= seconds <= _MOST_SECONDS:
            raise InvalidRequest(
                f"seconds is {seconds:g}; it must be from 0 to {_MOST_SECONDS:g}", param="seconds"
            )
        async with self._record.around_action(scope, "model.remove", name, seconds=seconds):
            await self._served.remove(name, seconds, str(peer_in(scope)))
        return ModelChanged(name, "removed")

    @property
    def routes(self) -> list[Route]:
        """All routes."""
        path = "/admin/models/{name:path}"
        return [
            Route(path, AdminEndpoint(self.add), methods=["PUT"]),
            Route(path, AdminEndpoint(self.remove), methods=["DELETE"]),
        ]
