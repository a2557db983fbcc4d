"""What surrounds every request: its id, its error answer and its count.

A client's ``x-request-id`` is echoed and never used inside: two clients may send the same one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable
from random import Random

from starlette.exceptions import HTTPException

from gatewayd.errors import (
    EngineUnavailable,
    GatewayError,
    InternalError,
    MethodNotAllowed,
    NotFound,
    QueueFull,
)
from gatewayd.http.asgi import (
    App,
    ClientGone,
    Header,
    Message,
    Receive,
    Scope,
    Send,
    header,
    send_error,
)
from gatewayd.metrics import Metrics

logger = logging.getLogger("gatewayd.http")

_SAFE_ID = re.compile(rb"[A-Za-z0-9._:@/+=-]{1,128}")
_METHODS = frozenset(("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"))
CLIENT_GONE = 499

# An id is no secret, and asking the system for each one costs more than making it.
_draw_bits = Random().getrandbits


class Exchange:
    """One request and its answer: notes the status, adds the id to the headers.

    Attributes:
        status: sent, or None while nothing was.
    """

    __slots__ = ("_id", "_send", "status")

    def __init__(self, send: Send, echoed_id: bytes) -> None:
        self._send = send
        self._id: Header = (b"x-request-id", echoed_id)
        self.status: int | None = None

    def send(self, message: Message) -> Awaitable[None]:
        """Pass a message on; not a coroutine of its own, which each chunk would pay for."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], self._id]
        return self._send(message)


class Front:
    """The outermost layer."""

    def __init__(self, app: App, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; answer whatever goes wrong in it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{_draw_bits(96):024x}"
        scope["request_id"] = request_id
        scope["app"] = self  # starlette then raises its 404 and 405 instead of answering
        theirs = header(scope, b"x-request-id")
        is_safe = theirs is not None and _SAFE_ID.fullmatch(theirs)
        exchange = Exchange(send, theirs if theirs and is_safe else request_id.encode())
        try:
            await self._app(scope, receive, exchange.send)
        except ClientGone:
            pass  # counted below as 499
        except GatewayError as error:
            await self._answer(exchange, error)
        except HTTPException as error:
            allow = [(b"allow", value.encode()) for value in (error.headers or {}).values()]
            await self._answer(exchange, _routing_error(scope, error), allow)
        except Exception:
            logger.exception("request %s failed", request_id)
            await self._answer(exchange, InternalError("the gateway made a mistake; it is logged"))
        finally:
            endpoint = getattr(scope.get("endpoint"), "label", "other")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.answered(endpoint, method, exchange.status or CLIENT_GONE)

    async def _answer(
        self, exchange: Exchange, error: GatewayError, headers: list[Header] | None = None
    ) -> None:
        if exchange.status is not None:
            raise error  # an answer has begun: let the server cut the connection
        if isinstance(error, QueueFull | EngineUnavailable) and error.retry_after is None:
            error.retry_after = 1
        await send_error(exchange.send, error, headers or [])


def _routing_error(scope: Scope, error: HTTPException) -> GatewayError:
    path = scope["path"][:128]
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return MethodNotAllowed(f"{scope['method'][:16]} is not allowed on {path}; use {allowed}")
    return NotFound(f"there is no {path}; /openapi.json lists the routes")
