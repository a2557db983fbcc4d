"""Admin routes that deploy, promote and roll back versions of models."""

from __future__ import annotations

import msgspec
from starlette.routing import Route

from gatewayd.admin.audit_log import AuditRecord
from gatewayd.admin.endpoint import AdminEndpoint, body_if_any, body_of
from gatewayd.admin.peer import peer_in
from gatewayd.daemon.deployments import Deployments
from gatewayd.errors import InvalidRequest
from gatewayd.http.asgi import Receive, Scope
from gatewayd.wire.deployments import DeployBody, GraceBody, VersionChanged

_MOST_SECONDS = 3600.0


class DeploymentRoutes:
    """Handlers of ``/admin/versions``.

    Args:
        deployments: of the daemon.
        record: audits actions.
    """

    def __init__(self, deployments: Deployments, record: AuditRecord) -> None:
        self._deployments = deployments
        self._record = record

    async def versions(self, scope: Scope, receive: Receive) -> object:
        """Return all deployments."""
        return self._deployments.view()

    async def deploy(self, scope: Scope, receive: Receive) -> object:
        """Deploy a version, or change the terms of the one on trial."""
        name = scope["path_params"]["name"]
        body = await body_of(scope, receive, DeployBody)
        table = {} if isinstance(body.table, msgspec.UnsetType) else body.table
        verb, path = "deploy" if table else "change", str(table.get("path", ""))
        async with self._record.around_action(scope, f"version.{verb}", name, path=path[:256]):
            terms = await self._deployments.deploy(name, body, str(peer_in(scope)))
        return VersionChanged(name, terms.version, "deployed" if table else "changed")

    async def promote(self, scope: Scope, receive: Receive) -> object:
        """Replace a model by its version on trial."""
        name = scope["path_params"]["name"]
        seconds = await _seconds(scope, receive)
        async with self._record.around_action(scope, "version.promote", name):
            version = await self._deployments.promote(name, seconds, str(peer_in(scope)))
        return VersionChanged(name, version, "promoted")

    async def roll_back(self, scope: Scope, receive: Receive) -> object:
        """End the trial of a version."""
        name = scope["path_params"]["name"]
        seconds = await _seconds(scope, receive)
        async with self._record.around_action(scope, "version.rollback", name):
            version = await self._deployments.roll_back(name, seconds, str(peer_in(scope)))
        return VersionChanged(name, version, "rolled back")

    @property
    def routes(self) -> list[Route]:
        """All routes."""
        path = "/admin/versions/{name:path}"
        return [
            Route("/admin/versions", AdminEndpoint(self.versions), methods=["GET"]),
            Route(f"{path}/promote", AdminEndpoint(self.promote), methods=["POST"]),
            Route(path, AdminEndpoint(self.deploy), methods=["PUT"]),
            Route(path, AdminEndpoint(self.roll_back), methods=["DELETE"]),
        ]


async def _seconds(scope: Scope, receive: Receive) -> float:
    seconds = (await body_if_any(scope, receive, GraceBody)).seconds
    if not 0 <= seconds <= _MOST_SECONDS:
        raise InvalidRequest(
            f"seconds is {seconds:g}; it must be from 0 to {_MOST_SECONDS:g}", param="seconds"
        )
    return seconds
