"""ASGI helpers for routes: types, headers, request bodies, responses and errors."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gatewayd.errors import (
    ClientGone,
    GatewayError,
    InsufficientQuota,
    InvalidRequest,
    PayloadTooLarge,
    RateLimited,
    RequestCancelled,
    UnsupportedMediaType,
)
from gatewayd.http.bodies import FREE_BYTES, reserve_body
from gatewayd.tracing.causes import RECEIVE
from gatewayd.tracing.request_trace import TimedSpan

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

encode_json = msgspec.json.Encoder().encode
_ENTRIES_AT_ONCE = 512
_BYTES_AT_ONCE = 1 << 20

_JSON_TYPE = re.compile(rb'\s*application/json\s*(;\s*charset\s*=\s*"?utf-?8"?\s*)?', re.IGNORECASE)
CLOSE: Header = (b"connection", b"close")
JSON_HEADER: Header = (b"content-type", b"application/json")
# Statuses of errors raised before a body was read completely.
_LEAVES_BODY_UNREAD = frozenset((408, 413, 415))
_MAY_LEAVE_BODY_UNREAD = frozenset((401, 403, 429, 503))
_DRAINED_BYTES = 1 << 20
"""Maximum of an unwanted body to read; longer ones close the connection, losing the response."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header with a lower-case name, or None."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


async def read_json_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Receive a JSON body, enforcing the limit while it arrives.

    Raises:
        UnsupportedMediaType: it is not plain JSON; raised before it is read.
        PayloadTooLarge: its actual or declared size is over the limit in bytes.
        NotAdmitted: the memory budget for bodies is used up.
        ClientGone: the client disconnected before its end.
    """
    if not is_json(scope):
        raise UnsupportedMediaType("the body must be JSON: send content-type: application/json")
    return await read_body(scope, receive, limit)


def is_json(scope: Scope) -> bool:
    """Whether a request's content type is JSON."""
    value = header(scope, b"content-type")
    return value is not None and (
        value == b"application/json" or _JSON_TYPE.fullmatch(value) is not None
    )


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Receive a body of any type, enforcing the limit while it arrives.

    Raises:
        UnsupportedMediaType: it is compressed; raised before it is read.
        PayloadTooLarge: its actual or declared size is over the limit in bytes.
        NotAdmitted: the memory budget for bodies is used up.
        ClientGone: the client disconnected before its end.
    """
    stated = _check_headers(scope, limit)
    with TimedSpan(RECEIVE):
        return await _receive(scope, receive, stated, limit)


async def _receive(scope: Scope, receive: Receive, stated: int, limit: int) -> bytes:
    if stated > FREE_BYTES:
        reserve_body(scope, stated)
    message = await receive()
    body: bytes = message.get("body", b"")
    parts, size = [body], len(body)
    # Without a declared length the budget is reserved as the body arrives.
    if size > FREE_BYTES:
        reserve_body(scope, size)
    while message["type"] == "http.request" and message.get("more_body") and size <= limit:
        message = await receive()
        part = message.get("body", b"")
        size += len(part)
        if size > FREE_BYTES:
            reserve_body(scope, size)
        parts.append(part)
    if message["type"] == "http.disconnect":
        raise ClientGone
    if size > limit:
        raise _too_large(f"over {limit}", limit)
    # Usually one message: no copy.
    return body if len(parts) == 1 else b"".join(parts)


def _check_headers(scope: Scope, limit: int) -> int:
    """Check encoding and length headers; return the declared length, 0 without one."""
    stated = 0
    for name, value in scope["headers"]:
        if name == b"content-encoding" and value.strip().lower() != b"identity":
            raise UnsupportedMediaType("a compressed body is not accepted; send it plain")
        elif name == b"content-length":
            if not value.isdigit():
                raise InvalidRequest("content-length is not a number")
            # Numbers of any length are valid, and slow to convert.
            if len(value) > 18 or int(value) > limit:
                raise _too_large(value.decode()[:18], limit)
            stated = int(value)
    return stated


def closes(scope: Scope, error: GatewayError) -> bool:
    """Whether a connection must be closed after an error raised before its body was read.

    After a refusal by authentication, authorization or a limit the body is discarded as it arrives,
    unless it is long, has no declared length, or the client waits for ``100 Continue``.
    """
    if error.status not in _MAY_LEAVE_BODY_UNREAD:
        return False
    length = header(scope, b"content-length") or b"0"
    is_long = not length.isdigit() or len(length) > 18 or int(length) > _DRAINED_BYTES
    names = (b"transfer-encoding", b"expect")
    return is_long or any(header(scope, name) is not None for name in names)


def _too_large(size: str, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body has {size} bytes; the maximum is {limit}")


def encode_entries(values: Sequence[object]) -> bytes:
    """Encode a list as JSON without brackets, in slices so that other threads can run."""
    return b",".join(
        [
            encode_json(values[at : at + _ENTRIES_AT_ONCE])[1:-1]
            for at in range(0, len(values), _ENTRIES_AT_ONCE)
        ]
    )


async def send_body(
    send: Send,
    body: bytes,
    *,
    status: int = 200,
    headers: Sequence[Header] = (JSON_HEADER,),
) -> None:
    """Send a response with a complete body."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    # The transport copies what the client does not read immediately, so send in small parts.
    at = 0
    while len(body) - at > _BYTES_AT_ONCE:
        part = body[at : at + _BYTES_AT_ONCE]
        await send({"type": "http.response.body", "body": part, "more_body": True})
        at += _BYTES_AT_ONCE
    await send({"type": "http.response.body", "body": body[at:]})


async def send_json(
    send: Send, value: object, *, status: int = 200, headers: Sequence[Header] = ()
) -> None:
    """Send a JSON response."""
    await send_body(send, encode_json(value), status=status, headers=[JSON_HEADER, *headers])


class FormattedError(NamedTuple):
    """Error response in the format of another API.

    Attributes:
        status: of the response.
        headers: of the response.
        body: the complete body.
    """

    status: int
    headers: Sequence[Header]
    body: bytes


async def send_error(
    send: Send,
    error: GatewayError,
    headers: Sequence[Header] = (),
    formatted: FormattedError | None = None,
) -> None:
    """Send an error response: OpenAI's error object, or one in another API's format."""
    if formatted is None:
        formatted = FormattedError(error.status, [JSON_HEADER], encode_json(error.body()))
    extra = [*formatted.headers, *error_headers(error), *headers]
    if error.status in _LEAVES_BODY_UNREAD:
        extra.append(CLOSE)
    await send_body(send, formatted.body, status=formatted.status, headers=extra)


def error_headers(error: GatewayError) -> list[Header]:
    """Return the headers of an error response."""
    found: list[Header] = []
    if error.retry_after is not None:
        found.append((b"retry-after", b"%d" % math.ceil(error.retry_after)))
        # Whole seconds are coarse; OpenAI's clients prefer this header.
        found.append((b"retry-after-ms", b"%d" % math.ceil(1000 * error.retry_after)))
    if isinstance(error, RateLimited):
        found += [(name.encode(), value.encode()) for name, value in error.headers.items()]
    elif _is_retry_useless(error):
        found.append((b"x-should-retry", b"false"))  # OpenAI's clients retry any 429 or 503
    if error.status == 401:
        found.append((b"www-authenticate", b"Bearer"))
    return found


def _is_retry_useless(error: GatewayError) -> bool:
    """Whether a retry is useless or unwanted."""
    is_spent = isinstance(error, InsufficientQuota) and error.retry_after is None
    return is_spent or isinstance(error, RequestCancelled)


def ignored_header(names: Sequence[str]) -> list[Header]:
    """Return the ``x-gateway-ignored-params`` header, if any; unsafe names are only counted."""
    if not names:
        return []
    safe = [name for name in names if re.fullmatch(r"[A-Za-z0-9_.\[\]-]{1,96}", name)][:32]
    rest = len(names) - len(safe)
    value = ", ".join([*safe, *([f"({rest} more)"] if rest else [])])
    return [(b"x-gateway-ignored-params", value.encode())]
