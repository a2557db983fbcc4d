"""Several methods of one path, each with an app of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from starlette.routing import Route

from gatewayd.http.asgi import App, Receive, Scope, Send


class Methods:
    """An ASGI app that chooses by the method; routing has refused all others."""

    def __init__(self, path: str, apps: Mapping[str, App]) -> None:
        self.label = path
        self._apps = dict(apps)
        if "GET" in self._apps:
            self._apps["HEAD"] = self._apps["GET"]

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass it on."""
        return self._apps[scope["method"]](scope, receive, send)


def route(path: str, **apps: App) -> Route:
    """One path, with an app for each method."""
    return Route(path, Methods(path, apps), methods=list(apps))
