"""Outermost middleware: request ids, error responses and request metrics."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException

from gatewayd.errors import (
    MISTAKE,
    ClientGone,
    EngineUnavailable,
    GatewayError,
    InternalError,
    MethodNotAllowed,
    NotFound,
    QueueFull,
)
from gatewayd.http.asgi import (
    CLOSE,
    App,
    FormattedError,
    Header,
    Message,
    Receive,
    Scope,
    Send,
    closes,
    send_error,
)
from gatewayd.http.bodies import release_body
from gatewayd.http.server.edge_errors import REFUSED
from gatewayd.http.server.request_id import NAME, answered_id, new_id
from gatewayd.metrics.registry import GatewayMetrics
from gatewayd.pipeline.refusals import CLIENT_GONE, is_refusal, reason_for, refused
from gatewayd.tenants.principal import IN_SCOPE
from gatewayd.tracing import request_trace
from gatewayd.tracing.latency_record import EndReason

logger = logging.getLogger("gatewayd.http")

ErrorFormatter = Callable[[Scope, GatewayError], FormattedError | None]
"""Formats an error for the API of the requested path; None for OpenAI's format."""

_METHODS = frozenset(("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"))
_GONE = 499


class RequestScope:
    """One exchange: records the response's status and adds the request id to its headers.

    Attributes:
        status: of the response, or None before it starts.
    """

    __slots__ = ("_id", "_send", "status")

    def __init__(self, send: Send, echoed_id: bytes) -> None:
        self._send = send
        self._id: Header = (NAME, echoed_id)
        self.status: int | None = None

    def send(self, message: Message) -> Awaitable[None]:
        """Forward a message; not a coroutine, to save its overhead for each chunk."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], self._id]
        return self._send(message)


class RequestMiddleware:
    """Middleware around all requests of the data plane."""

    def __init__(
        self,
        app: App,
        metrics: GatewayMetrics,
        format_error: ErrorFormatter = lambda scope, error: None,
    ) -> None:
        """Wrap an app.

        Args:
            app: the app to wrap.
            metrics: counts the requests.
            format_error: formats errors on paths of other APIs.
        """
        self._app = app
        self._metrics = metrics
        self._format_error = format_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request and convert every exception to an error response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_id()
        scope["request_id"] = request_id
        scope["app"] = self  # starlette then raises its 404 and 405 instead of answering
        echoed_id = answered_id(scope["headers"], request_id)
        request_trace.start_trace(echoed_id.decode(), request_id)
        exchange = RequestScope(send, echoed_id)
        try:
            await self._app(scope, receive, exchange.send)
        except ClientGone:
            self._record_refusal(scope, exchange, CLIENT_GONE)  # counted below as 499
        except GatewayError as error:
            if is_refusal(error):
                self._record_refusal(scope, exchange, reason_for(error))
            await self._answer(scope, exchange, error)
            release_frames(error)
        except HTTPException as error:
            allow = [(b"allow", value.encode()) for value in (error.headers or {}).values()]
            await self._answer(scope, exchange, _routing_error(scope, error), allow)
        except Exception:
            logger.exception("request %s failed", request_id)
            mistake = InternalError(MISTAKE)
            self._record_refusal(scope, exchange, reason_for(mistake))
            await self._answer(scope, exchange, mistake)
        finally:
            release_body(scope)
            endpoint = getattr(scope.get("endpoint"), "label", "other")
            # Clients may send any method, and each would be a time series.
            method = scope["method"] if scope["method"] in _METHODS else "other"
            # If the edge has answered, the app's response was not sent.
            status = scope.get(REFUSED) or exchange.status or _GONE
            self._metrics.answered(endpoint, method, status)
            logger.debug("%s %s answered with status %d", method, endpoint, status)

    def _record_refusal(self, scope: Scope, exchange: RequestScope, why: EndReason) -> None:
        """Record why a request was refused, if it is an authenticated POST to a known route."""
        asks, label = request_trace.current(), getattr(scope.get("endpoint"), "label", None)
        # The pipeline records requests that were sent to engines.
        if asks is None or asks.is_sent or label is None or scope["method"] != "POST":
            return
        if exchange.status is None and (principal := scope.get(IN_SCOPE)) is not None:
            tenant = principal.tenant if principal.account is not None else ""
            self._metrics.record_refusal(refused(asks, scope["request_id"], label, tenant, why))

    async def _answer(
        self,
        scope: Scope,
        exchange: RequestScope,
        error: GatewayError,
        headers: list[Header] | None = None,
    ) -> None:
        if exchange.status is not None:
            raise error  # the response has started, so the server must close the connection
        if isinstance(error, QueueFull | EngineUnavailable) and error.retry_after is None:
            error.retry_after = 1
        extra = [*(headers or []), *([CLOSE] if closes(scope, error) else [])]
        await send_error(exchange.send, error, extra, self._format_error(scope, error))


def release_frames(error: BaseException) -> None:
    """Release the traceback frames of an error after it has been answered.

    If one of the frames refers to the error, directly or not, the frames and the request's body
    would stay in memory until a full garbage collection.
    """
    found: BaseException | None = error
    while found is not None and found.__traceback__ is not None:
        found.__traceback__ = None
        found = found.__cause__ or found.__context__


def _routing_error(scope: Scope, error: HTTPException) -> GatewayError:
    path = scope["path"][:128]
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return MethodNotAllowed(f"{scope['method'][:16]} is not allowed on {path}; use {allowed}")
    return NotFound(f"there is no {path}; /openapi.json lists the routes")
