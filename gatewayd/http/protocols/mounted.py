"""Protocols among the routes: asked for theirs once, kept apart, their errors in their form."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from starlette.routing import Route, compile_path

from gatewayd.errors import GatewayError
from gatewayd.http.asgi import Scope, Shaped
from gatewayd.http.protocols.answer import refusal_of
from gatewayd.http.protocols.gateway import ServedGateway
from gatewayd.http.protocols.route import Mount, ProtocolRoute, response_headers
from gatewayd.http.schema.openapi import Operation
from gatewayd.http.services import Services
from gatewayd_hooks.host.errors import LoadFailed, PluginError, told
from gatewayd_hooks.protocols import Handler
from gatewayd_hooks.protocols import Route as OneMethod
from gatewayd_hooks.requests.tables import RequestTable
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger("gatewayd.http")

_METHODS = ("GET", "POST", "DELETE", "HEAD")
_OURS = "the gateway"


class Protocols:
    """All that are served."""

    def __init__(self, services: Services) -> None:
        """Ask each for its routes.

        Raises:
            PluginError: one has none that can be served.
        """
        self._services = services
        self._gateway = ServedGateway(services)
        mounts = [Mount(name, strategy) for name, strategy in services.protocols]
        self._routes = [(mount, self._asked(mount)) for mount in mounts]
        self._owners = Owners()

    @property
    def operations(self) -> list[Operation]:
        """For ``/openapi.json``."""
        return [
            Operation(
                *(route.method.lower(), route.path, route.summary, route.request),
                owner=mount.name,
            )
            for mount, routes in self._routes
            for route in routes
        ]

    def routes(self, taken: Iterable[Route]) -> list[Route]:
        """Routes beside those of the gateway.

        Raises:
            PluginError: a path is taken; both owners are named.
        """
        owners = {route.path: _OURS for route in taken}
        for path in owners:
            self._owners.add(path, None)
        found = []
        for mount, routes in self._routes:
            for path, handlers in _by_path(routes).items():
                for other, owner in owners.items():
                    if owner != mount.name and overlap(path, other):
                        raise PluginError(
                            _plugin(mount),
                            f"cannot serve {path}: {other} belongs to "
                            + (owner if owner == _OURS else f"{Kind.PROTOCOL}.{owner}"),
                        )
                owners[path] = mount.name
                self._owners.add(path, mount)
                app = ProtocolRoute(path, mount, handlers, self._gateway, self._services)
                found.append(Route(path, app, methods=list(handlers)))
        return found

    def shape(self, scope: Scope, error: GatewayError) -> Shaped | None:
        """See ``front.Shape``."""
        mount = self._owners.of(scope["path"])
        if mount is None:
            return None
        try:
            response = mount.strategy.error(refusal_of(error), scope["request_id"])
            if not isinstance(response.body, bytes):
                raise TypeError("the body of an error must be bytes")
            return Shaped(response.status, response_headers(response), response.body)
        except Exception:  # noqa: BLE001 - a plugin may raise anything
            _log.exception("protocol %s failed to format an error", mount.name)
            return None

    def _asked(self, mount: Mount) -> Sequence[OneMethod]:
        plugin = _plugin(mount)
        try:
            routes = [OneMethod(*route) for route in mount.strategy.routes(self._gateway)]
        except Exception as error:
            raise LoadFailed(plugin, f"routes raised {told(error)}") from error
        seen = set()
        for route in routes:
            name = f"{route.method} {route.path}"
            if name in seen:
                raise LoadFailed(plugin, f"it has {name} twice")
            seen.add(name)
            if route.method not in _METHODS:
                raise LoadFailed(plugin, f"{name}: a method is one of {', '.join(_METHODS)}")
            if not (route.request is None or _is_table(route.request)):
                raise LoadFailed(plugin, f"{name}: its request must be a RequestTable")
            if not callable(route.handler):
                raise LoadFailed(plugin, f"{name} has no handler")
            try:
                compile_path(route.path)
            except (AssertionError, ValueError, TypeError) as error:
                raise LoadFailed(plugin, f"{name}: {error}") from error
            if not route.path.startswith("/"):
                raise LoadFailed(plugin, f"{name}: a path begins with a slash")
        return routes


class Owners:
    """Whose path it is, also of one that does not exist.

    A folder in which all routes are one protocol's is its own with all that could be in it.
    """

    def __init__(self) -> None:
        self._exact: dict[str, Mount | None] = {}
        self._folders: dict[tuple[str, ...], Mount | None] = {}
        self._depth = 0

    def add(self, path: str, owner: Mount | None) -> None:
        """Enter a route; None for one of the gateway's own."""
        self._exact[path] = owner
        parts = _literal(path)
        self._depth = max(self._depth, len(parts))
        for length in range(1, len(parts) + 1):
            if self._folders.setdefault(parts[:length], owner) is not owner:
                self._folders[parts[:length]] = None

    def of(self, path: str) -> Mount | None:
        """The one owner; None for the gateway."""
        if path in self._exact:
            return self._exact[path]
        parts = tuple(path.split("/", self._depth + 1)[1 : self._depth + 1])
        for length in range(len(parts), 0, -1):
            if parts[:length] in self._folders:
                return self._folders[parts[:length]]
        return None


def overlap(one: str, other: str) -> bool:
    """Whether some path fits both."""
    ours, theirs = one.split("/"), other.split("/")
    for mine, its in zip(ours, theirs, strict=False):
        if mine.endswith(":path}") or its.endswith(":path}"):
            return True
        if mine != its and "{" not in mine and "{" not in its:
            return False
    return len(ours) == len(theirs)


def _by_path(routes: Sequence[OneMethod]) -> Mapping[str, Mapping[str, Handler]]:
    found: dict[str, dict[str, Handler]] = {}
    for route in routes:
        found.setdefault(route.path, {})[route.method] = route.handler
    return found


def _is_table(request: object) -> bool:
    return isinstance(request, type) and issubclass(request, RequestTable)


def _literal(path: str) -> tuple[str, ...]:
    """The parts of a path before the first parameter."""
    parts = path.split("/")[1:]
    at = next((i for i, part in enumerate(parts) if "{" in part), len(parts))
    return tuple(parts[:at])


def _plugin(mount: Mount) -> str:
    return f"{Kind.PROTOCOL}.{mount.name}"
