"""Dispatch of admin requests to the app of the model that they name by ``?model=``."""

from __future__ import annotations

from collections.abc import Mapping

from gatewayd.catalogue.catalogue import not_served
from gatewayd.errors import GatewayError
from gatewayd.http.asgi import App, Receive, Scope, Send, send_error
from gatewayd.http.query import query_of


class AdminModels:
    """The admin API of all models; without ``?model=`` it is that of the first.

    Args:
        apps: by name of the model, at least one.
    """

    def __init__(self, apps: Mapping[str, App]) -> None:
        self._apps = apps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        try:
            app = self._find(scope)
        except GatewayError as error:
            await send_error(send, error)
            return
        await app(scope, receive, send)

    def _find(self, scope: Scope) -> App:
        name = query_of(scope).get("model", next(iter(self._apps)))
        app = self._apps.get(name)
        if app is None:
            raise not_served(name, tuple(self._apps))
        return app
