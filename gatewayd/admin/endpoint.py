"""Endpoint of the admin API: an ASGI app around a handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from gatewayd.errors import InvalidRequest
from gatewayd.http.asgi import Receive, Scope, Send, read_body, read_json_body, send_json

_BODY_BYTES = 64 * 1024
BodyT = TypeVar("BodyT")
Answer = Callable[[Scope, Receive], Awaitable[object]]


class AdminEndpoint:
    """Sends what its handler returns as JSON."""

    def __init__(self, handler: Answer) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        await send_json(send, msgspec.to_builtins(await self._handler(scope, receive)))


async def body_of(
    scope: Scope, receive: Receive, kind: type[BodyT], most: int = _BODY_BYTES
) -> BodyT:
    """Read and decode a body of at most ``most`` bytes.

    Raises:
        GatewayError: it does not have this type.
    """
    return _decoded(await read_json_body(scope, receive, most), kind)


async def body_if_any(scope: Scope, receive: Receive, kind: type[BodyT]) -> BodyT:
    """Read and decode an optional body, of a type whose fields all have defaults.

    Raises:
        GatewayError: it does not have this type.
    """
    return _decoded(await read_body(scope, receive, _BODY_BYTES) or b"{}", kind)


def _decoded(body: bytes, kind: type[BodyT]) -> BodyT:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is invalid: {error}") from error
