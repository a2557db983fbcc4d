"""Mounting of protocol plugins: their routes, conflicts between paths, and error formats."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from starlette.routing import Route, compile_path

from gatewayd.errors import GatewayError
from gatewayd.http.asgi import App, FormattedError, Receive, Scope, Send
from gatewayd.http.protocols.answer import refusal_of
from gatewayd.http.protocols.gateway import ServedGateway
from gatewayd.http.protocols.route import MountedProtocol, ProtocolRoute, response_headers
from gatewayd.http.rights import ProtocolEndpoint
from gatewayd.http.schema.openapi import Operation
from gatewayd.http.services import Services
from gatewayd_hooks.host.errors import LoadFailed, PluginError, describe_error
from gatewayd_hooks.protocols import Handler
from gatewayd_hooks.protocols import Route as OneMethod
from gatewayd_hooks.requests.tables import RequestTable
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger("gatewayd.http")

_METHODS = ("GET", "POST", "DELETE", "HEAD")
_OURS = "the gateway"


class Protocols:
    """All served protocol plugins and their routes."""

    def __init__(self, services: Services) -> None:
        """Collect the routes of each protocol.

        Raises:
            PluginError: the routes of one are invalid.
        """
        self._services = services
        self._gateway = ServedGateway(services)
        mounts = [MountedProtocol(name, strategy) for name, strategy in services.protocols]
        self._routes = [(mount, self._validated_routes(mount)) for mount in mounts]
        self._owners = PathOwners()

    def set_app(self, app: App) -> None:
        """Set the app to which protocols send requests of ports of their own."""
        self._gateway.set_app(app)

    @property
    def operations(self) -> list[Operation]:
        """Operations of all protocols for ``/openapi.json``."""
        return [
            Operation(
                *(route.method.lower(), route.path, route.summary, route.request),
                owner=mount.name,
            )
            for mount, routes in self._routes
            for route in routes
        ]

    def routes(self, taken: Iterable[Route]) -> list[Route]:
        """Return the protocols' routes, in addition to those of the gateway.

        Raises:
            PluginError: a path is already served; the message names both owners.
        """
        owners: dict[str, dict[str, str]] = {}
        for route in taken:
            owners[route.path] = dict.fromkeys(_METHODS, _OURS)
            self._owners.add(route.path, None)
        apps: dict[str, dict[str, ProtocolRoute]] = {}
        for mount, routes in self._routes:
            for path, handlers in _by_path(routes).items():
                _check_conflicts(mount, path, handlers, owners)
                owners.setdefault(path, {}).update(dict.fromkeys(handlers, mount.name))
                self._owners.add(path, mount, handlers)
                is_operators = any(one.is_operators for one in routes if one.path == path)
                app = ProtocolRoute(
                    *(path, is_operators, mount, handlers, self._gateway, self._services)
                )
                apps.setdefault(path, {}).update(dict.fromkeys(handlers, app))
        return [
            Route(path, _one(by_method), methods=list(by_method))
            for path, by_method in apps.items()
        ]

    def format_error(self, scope: Scope, error: GatewayError) -> FormattedError | None:
        """See ``request_middleware.ErrorFormatter``."""
        mount = self._owners.of(scope["path"], scope["method"])
        if mount is None:
            return None
        try:
            response = mount.strategy.error(refusal_of(error), scope["request_id"])
            if not isinstance(response.body, bytes):
                raise TypeError("the body of an error must be bytes")
            return FormattedError(response.status, response_headers(response), response.body)
        except Exception:  # noqa: BLE001 - a plugin may raise anything
            _log.exception("protocol %s failed to format an error", mount.name)
            return None

    def _validated_routes(self, mount: MountedProtocol) -> Sequence[OneMethod]:
        plugin = _plugin(mount)
        try:
            routes = [OneMethod(*route) for route in mount.strategy.routes(self._gateway)]
        except Exception as error:
            raise LoadFailed(plugin, f"routes raised {describe_error(error)}") from error
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
                # starlette asserts that the types of path parameters exist.
                raise LoadFailed(plugin, f"{name}: {error}") from error
            if not route.path.startswith("/"):
                raise LoadFailed(plugin, f"{name}: a path begins with a slash")
        return routes


class SharedPath(ProtocolEndpoint):
    """Route of a path whose methods are served by several protocols.

    Args:
        by_method: their routes.

    Attributes:
        label: in metrics.
        is_operators: whether it is for the operator alone.
    """

    def __init__(self, by_method: Mapping[str, ProtocolRoute]) -> None:
        self.label = next(iter(by_method.values())).label
        self.is_operators = any(route.is_operators for route in by_method.values())
        self._by_method = by_method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; HEAD is a GET where no protocol has it."""
        route = self._by_method.get(scope["method"]) or self._by_method["GET"]
        await route(scope, receive, send)


class PathOwners:
    """Owner of each path, including paths that do not exist.

    If all routes below a path prefix belong to one protocol, it owns every path below the prefix.
    """

    def __init__(self) -> None:
        self._exact: dict[str, MountedProtocol | None] = {}
        self._methods: dict[tuple[str, str], MountedProtocol | None] = {}
        self._folders: dict[tuple[str, ...], MountedProtocol | None] = {}
        self._depth = 0

    def add(self, path: str, owner: MountedProtocol | None, methods: Iterable[str] = ()) -> None:
        """Add a route; the owner is None for the gateway's own.

        Other methods of a path that two protocols serve belong to the first one.
        """
        self._exact.setdefault(path, owner)
        for method in methods:
            self._methods[path, method] = owner
        parts = _literal(path)
        self._depth = max(self._depth, len(parts))
        for length in range(1, len(parts) + 1):
            # Below a folder of several owners, unknown paths are the gateway's.
            if self._folders.setdefault(parts[:length], owner) is not owner:
                self._folders[parts[:length]] = None

    def of(self, path: str, method: str = "GET") -> MountedProtocol | None:
        """Return the owner of a method of a path; None for the gateway."""
        if path in self._exact:
            return self._methods.get((path, method), self._exact[path])
        # No folder has more than `_depth` segments.
        parts = tuple(path.split("/", self._depth + 1)[1 : self._depth + 1])
        for length in range(len(parts), 0, -1):
            if parts[:length] in self._folders:
                return self._folders[parts[:length]]
        return None


def overlap(one: str, other: str) -> bool:
    """Whether some path matches both routes."""
    ours, theirs = one.split("/"), other.split("/")
    for mine, its in zip(ours, theirs, strict=False):
        # Matches any number of segments.
        if mine.endswith(":path}") or its.endswith(":path}"):
            return True
        if mine != its and "{" not in mine and "{" not in its:
            return False
    return len(ours) == len(theirs)


def _check_conflicts(
    mount: MountedProtocol,
    path: str,
    methods: Iterable[str],
    owners: Mapping[str, Mapping[str, str]],
) -> None:
    """Compare a protocol's path with those served already.

    Raises:
        PluginError: a request might be for both; the message names both owners.
    """
    for other, by_method in owners.items():
        if not overlap(path, other):
            continue
        shared = by_method if path != other else [one for one in methods if one in by_method]
        for method in shared:
            owner = by_method[method]
            if owner != mount.name:
                raise PluginError(
                    _plugin(mount),
                    f"cannot serve {path}: {other} belongs to "
                    + (owner if owner == _OURS else f"{Kind.PROTOCOL}.{owner}"),
                )


def _one(by_method: Mapping[str, ProtocolRoute]) -> ProtocolRoute | SharedPath:
    apps = list(dict.fromkeys(by_method.values()))
    return apps[0] if len(apps) == 1 else SharedPath(by_method)


def _by_path(routes: Sequence[OneMethod]) -> Mapping[str, Mapping[str, Handler]]:
    found: dict[str, dict[str, Handler]] = {}
    for route in routes:
        found.setdefault(route.path, {})[route.method] = route.handler
    return found


def _is_table(request: object) -> bool:
    return isinstance(request, type) and issubclass(request, RequestTable)


def _literal(path: str) -> tuple[str, ...]:
    """Return the segments of a path before its first parameter."""
    parts = path.split("/")[1:]
    at = next((i for i, part in enumerate(parts) if "{" in part), len(parts))
    return tuple(parts[:at])


def _plugin(mount: MountedProtocol) -> str:
    return f"{Kind.PROTOCOL}.{mount.name}"
