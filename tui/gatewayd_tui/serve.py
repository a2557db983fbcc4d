"""Console in a browser. Every page that is open has the permissions of the user who started it.

Pages of other sites can reach a local port too, so access requires a key: the printed link has it,
and it becomes a cookie that browsers do not send from other sites. Browsers treat all ports of a
host as one site, and any page may open a WebSocket: the one of the console also checks the origin,
and no page may embed this one in a frame.
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
    """textual-serve with access by key.

    Args:
        arguments: of ``gatewayd tui``, which runs once for each open page.
        host, port: to listen on.
        url: public URL; None is derived from host and port.
    """

    def __init__(self, arguments: Sequence[str], host: str, port: int, url: str | None) -> None:
        # `-P`: a module in the working directory must not shadow an installed one.
        command = shlex.join([sys.executable, "-P", "-m", "gatewayd", "tui", *arguments])
        super().__init__(command, host, port, "gatewayd", url or f"http://{host}:{port}")
        self._key = secrets.token_urlsafe(24)
        # Named after the port, since browsers send a cookie to all ports of a host.
        self._cookie = f"gatewayd-console-{port}"
        self._origin = str(URL(self.public_url).origin())

    @property
    def link(self) -> str:
        """URL with the key, to open in a browser."""
        return f"{self.public_url}/?key={self._key}"

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        # Guards every route of textual-serve, static files and the WebSocket included.
        app.middlewares.append(self._guard)
        app.on_response_prepare.append(_unframed)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the key, and exchange it for a cookie."""
        if self._is_key(request.query.get("key", "")):
            # Redirected, so that the key does not stay in the address bar.
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
        """Print the link."""
        self.console.print(f"The console is at {self.link}", highlight=False, soft_wrap=True)
        self.console.print("ctrl+c stops it")


async def _unframed(request: web.Request, response: web.StreamResponse) -> None:
    """Forbid framing: pages of other ports could send the cookie from a frame (clickjacking)."""
    response.headers["Content-Security-Policy"] = "frame-ancestors 'none'"
