"""ASGI route of a protocol plugin: receives the body, calls the handler, sends the response."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from gatewayd.errors import MISTAKE, ClientGone, GatewayError, InternalError, UnsupportedMediaType
from gatewayd.http.asgi import (
    Header,
    Receive,
    Scope,
    Send,
    header,
    ignored_header,
    is_json,
    read_body,
    send_body,
)
from gatewayd.http.protocols.gateway import ProtocolExchange, ServedGateway
from gatewayd.http.protocols.pieces import PieceWriter
from gatewayd.http.rights import ProtocolEndpoint
from gatewayd.http.server.disconnect import disconnect_signal
from gatewayd.http.services import Services
from gatewayd.tenants.principal import principal_of
from gatewayd_hooks.protocols import (
    Handler,
    HttpRequest,
    HttpResponse,
    ProtocolStrategy,
    RequestRefusal,
)

_log = logging.getLogger("gatewayd.http")

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class ProtocolRefused(GatewayError):
    """Error raised by a protocol plugin, as a gateway error."""

    def __init__(self, refusal: RequestRefusal) -> None:
        super().__init__(
            refusal.message,
            param=refusal.param,
            code=refusal.code,
            retry_after=refusal.retry_after,
        )
        self.status = refusal.status
        self.type = refusal.type


class MountedProtocol(NamedTuple):
    """A served protocol plugin.

    Attributes:
        name: of its plugin.
        strategy: the protocol.
    """

    name: str
    strategy: ProtocolStrategy


class DisconnectHandler:
    """Disconnect listener: cancels the exchange's generations and the handler's task."""

    def __init__(self, exchange: ProtocolExchange, task: asyncio.Task[Any] | None) -> None:
        self.is_disconnected = False
        self._exchange = exchange
        self._task = task

    def __call__(self) -> None:
        """React to the client's disconnect."""
        self.is_disconnected = True
        self._exchange.abandon()
        if self._task is not None:
            self._task.cancel()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ProtocolRoute(ProtocolEndpoint):
    """Route for all methods of one path.

    Attributes:
        label: in metrics.
        is_operators: whether it is for the operator alone.
    """

    label: str
    is_operators: bool
    _mount: MountedProtocol
    _handlers: Mapping[str, Handler]
    _gateway: ServedGateway
    _services: Services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request_id: str = scope["request_id"]
        arrival, principal = self._services.clock(), principal_of(scope)
        with self._gateway.exchange(request_id, self.label, arrival, principal) as exchange:
            request = await self._receive(scope, receive)
            disconnect = disconnect_signal(scope, receive)
            on_disconnect = DisconnectHandler(exchange, asyncio.current_task())
            disconnect.add_listener(on_disconnect)
            try:
                await self._answer(request, exchange, send)
            except RequestRefusal as refusal:
                raise ProtocolRefused(refusal) from refusal
            except asyncio.CancelledError:
                # Cancelled by something else, such as the shutdown.
                if not on_disconnect.is_disconnected:
                    raise
                raise ClientGone from None
            except ClientGone:
                raise
            except Exception as error:
                _log.exception(
                    "protocol %s failed in request %s to %s",
                    *(self._mount.name, request_id, self.label),
                )
                raise InternalError(MISTAKE) from error
            finally:
                disconnect.remove_listener(on_disconnect)

    async def _receive(self, scope: Scope, receive: Receive) -> HttpRequest:
        """Receive a request.

        Raises:
            GatewayError: the body is refused.
            ClientGone: the client disconnected before the body's end.
        """
        body = b""
        if scope["method"] not in ("GET", "HEAD"):
            if header(scope, b"origin") is not None and not is_json(scope):
                # Browsers send types other than JSON cross-origin without a CORS preflight.
                raise UnsupportedMediaType(
                    "from a web page the body must be JSON: send content-type: application/json"
                )
            body = await read_body(scope, receive, self._services.limits.body_bytes)
        return HttpRequest(
            method=scope["method"],
            path=scope["path"],
            params=scope.get("path_params", {}),
            query=dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)),
            headers={
                name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
            },
            body=body,
            request_id=scope["request_id"],
        )

    async def _answer(self, request: HttpRequest, exchange: ProtocolExchange, send: Send) -> None:
        handler = self._handlers.get(request.method) or self._handlers["GET"]  # HEAD is a GET
        response = await handler(request)

        def headers() -> list[Header]:
            """Return the headers when the response starts, so that they contain timings."""
            ours = [response.names.get(name, name) for name in exchange.ignored]
            ignored = dict.fromkeys([*response.ignored, *ours])
            return [
                *response_headers(response),
                *ignored_header(list(ignored)),
                *exchange.headers(),
            ]

        if isinstance(response.body, bytes):
            await send_body(send, response.body, status=response.status, headers=headers())
            return
        pieces = PieceWriter(
            send,
            response.status,
            headers,
            keepalive=response.keepalive,
            seconds=self._services.limits.ping_seconds,
        )
        await self._stream(pieces, response.body, request, exchange)

    async def _stream(
        self,
        pieces: PieceWriter,
        body: AsyncIterator[bytes],
        request: HttpRequest,
        exchange: ProtocolExchange,
    ) -> None:
        """Write an iterator's pieces; errors after the first one are formatted as a last piece."""
        try:
            try:
                await pieces.write(body)
            except RequestRefusal as refusal:
                if not pieces.has_started:
                    raise
                await pieces.end(self._late(refusal, request))
            except ClientGone:
                raise
            except Exception:
                if not pieces.has_started:
                    raise
                _log.exception(
                    "protocol %s failed while answering request %s to %s",
                    *(self._mount.name, request.request_id, self.label),
                )
                # Accounted for as an error, not as a disconnect.
                exchange.fail(InternalError(MISTAKE))
                await pieces.end(self._late(_mistake(), request))
        finally:
            # An iterator that was not exhausted is closed here, not by the garbage collector.
            close: Callable[[], object] | None = getattr(body, "aclose", None)
            if close is not None:
                await body.aclose()  # type: ignore[attr-defined]

    def _late(self, refusal: RequestRefusal, request: HttpRequest) -> bytes:
        try:
            return self._mount.strategy.late_error(refusal, request.request_id)
        except Exception:  # noqa: BLE001 - a plugin may raise anything
            _log.exception("protocol %s failed to format an error", self._mount.name)
            return b""


def _mistake() -> RequestRefusal:
    return RequestRefusal(500, MISTAKE, type=InternalError.type, code=InternalError.code)


def response_headers(response: HttpResponse) -> list[Header]:
    """Encode the headers of a response.

    Raises:
        ValueError: a name or value is invalid.
    """
    found = {"content-type": response.content_type, **response.headers}
    for name, value in found.items():
        if not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            raise ValueError(f"the header {name[:64]!r} cannot be sent with {value[:64]!r}")
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in found.items()]
