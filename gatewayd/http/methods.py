"""Dispatch by HTTP method: one path with an app for each method."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from starlette.routing import Route

from gatewayd.http.asgi import App, Receive, Scope, Send


class Methods:
    """ASGI app that dispatches by method; the router has already refused other methods."""

    def __init__(self, path: str, apps: Mapping[str, App]) -> None:
        self.label = path
        self._apps = dict(apps)
        if "GET" in self._apps:
            self._apps["HEAD"] = self._apps["GET"]

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Dispatch a request to the app of its method."""
        return self._apps[scope["method"]](scope, receive, send)


def route(path: str, **apps: App) -> Route:
    """Create the route of a path with an app for each method."""
    return Route(path, Methods(path, apps), methods=list(apps))
