"""The console in a browser. Whoever opens the page acts as whoever started this.

A page of another site can reach a port of this machine too, so that being here is not enough: the
link that is printed carries a key, which becomes a cookie that browsers keep from other sites. To
browsers all ports of a host are one site, and any page may open a WebSocket: the one that drives
the console asks for the origin that the link has, too, and no page may show this one in a frame.
"""

from __future__ import annotations

import hmac
import secrets
import shlex
import sys
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web
from textual_serve.server import Server
from yarl import URL

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_HOUR = 3600


class BrowserConsole(Server):
    """textual-serve behind a key.

    Args:
        arguments: of ``gatewayd tui``, which runs once for each page that is open.
        host, port: to listen on.
        url: that browsers come by; None takes host and port.
    """

    def __init__(self, arguments: Sequence[str], host: str, port: int, url: str | None) -> None:
        command = shlex.join([sys.executable, "-P", "-m", "gatewayd", "tui", *arguments])
        super().__init__(command, host, port, "gatewayd", url or f"http://{host}:{port}")
        self._key = secrets.token_urlsafe(24)
        self._cookie = f"gatewayd-console-{port}"
        self._origin = str(URL(self.public_url).origin())

    @property
    def link(self) -> str:
        """What is opened in a browser."""
        return f"{self.public_url}/?key={self._key}"

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._guard)
        app.on_response_prepare.append(_unframed)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let in who has the key, and turn it into a cookie."""
        if self._is_key(request.query.get("key", "")):
            found = web.HTTPFound("/")
            found.set_cookie(
                self._cookie, self._key, httponly=True, samesite="Strict", max_age=12 * _HOUR
            )
            raise found
        if not self._is_key(request.cookies.get(self._cookie, "")):
            raise web.HTTPForbidden(text="open the link that gatewayd tui --serve has printed\n")
        if request.path == "/ws" and request.headers.get("Origin") != self._origin:
            raise web.HTTPForbidden(text=f"the console is for pages of {self._origin} only\n")
        return await handler(request)

    def _is_key(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._key.encode())

    async def on_startup(self, app: web.Application) -> None:
        """Say where to go."""
        self.console.print(f"The console is at {self.link}", highlight=False, soft_wrap=True)
        self.console.print("ctrl+c stops it")


async def _unframed(request: web.Request, response: web.StreamResponse) -> None:
    """Pages of other ports could have the cookie sent from a frame, and put theirs over it."""
    response.headers["Content-Security-Policy"] = "frame-ancestors 'none'"
