"""The few ASGI pieces that every route needs: types, headers, bodies, answers."""

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
from gatewayd.http.bodies import FREE_BYTES, claim
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
_LEAVES_BODY_UNREAD = frozenset((408, 413, 415))
_MAY_LEAVE_BODY_UNREAD = frozenset((401, 403, 429, 503))
_DRAINED_BYTES = 1 << 20
"""Of a body that nobody wants; a client of a longer one is cut off, and may lose the answer."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of a name in lower case, or None."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


async def read_json_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Receive a body, counting while it comes.

    Raises:
        UnsupportedMediaType: it is not plain JSON; told before it is read.
        PayloadTooLarge: it is, or says it is, over the limit in bytes.
        NotAdmitted: the bodies that are here leave no room for it.
        ClientGone: it did not come to its end.
    """
    if not is_json(scope):
        raise UnsupportedMediaType("the body must be JSON: send content-type: application/json")
    return await read_body(scope, receive, limit)


def is_json(scope: Scope) -> bool:
    """Whether a request says that its body is JSON."""
    value = header(scope, b"content-type")
    return value is not None and (
        value == b"application/json" or _JSON_TYPE.fullmatch(value) is not None
    )


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Receive a body of any type, counting while it comes.

    Raises:
        UnsupportedMediaType: it is compressed; told before it is read.
        PayloadTooLarge: it is, or says it is, over the limit in bytes.
        NotAdmitted: the bodies that are here leave no room for it.
        ClientGone: it did not come to its end.
    """
    stated = _check_headers(scope, limit)
    with TimedSpan(RECEIVE):
        return await _receive(scope, receive, stated, limit)


async def _receive(scope: Scope, receive: Receive, stated: int, limit: int) -> bytes:
    if stated > FREE_BYTES:
        claim(scope, stated)
    message = await receive()
    body: bytes = message.get("body", b"")
    parts, size = [body], len(body)
    if size > FREE_BYTES:
        claim(scope, size)
    while message["type"] == "http.request" and message.get("more_body") and size <= limit:
        message = await receive()
        part = message.get("body", b"")
        size += len(part)
        if size > FREE_BYTES:
            claim(scope, size)
        parts.append(part)
    if message["type"] == "http.disconnect":
        raise ClientGone
    if size > limit:
        raise _too_large(f"over {limit}", limit)
    return body if len(parts) == 1 else b"".join(parts)


def _check_headers(scope: Scope, limit: int) -> int:
    """Bytes that the body is said to have; 0 where nothing is said."""
    stated = 0
    for name, value in scope["headers"]:
        if name == b"content-encoding" and value.strip().lower() != b"identity":
            raise UnsupportedMediaType("a compressed body is not accepted; send it plain")
        elif name == b"content-length":
            if not value.isdigit():
                raise InvalidRequest("content-length is not a number")
            if len(value) > 18 or int(value) > limit:
                raise _too_large(value.decode()[:18], limit)
            stated = int(value)
    return stated


def closes(scope: Scope, error: GatewayError) -> bool:
    """Whether a connection must end with an error that came before its body was read.

    Behind a refusal of a key, a right or a limit a body is thrown away as it comes, unless it is
    long, has no known end, or its client waits to be asked for it.
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
    """A list as JSON without its brackets; where it is long, other threads get their turns."""
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
    """Answer with a whole body."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    # Whoever sends copies what the client does not take at once: little at a time.
    at = 0
    while len(body) - at > _BYTES_AT_ONCE:
        part = body[at : at + _BYTES_AT_ONCE]
        await send({"type": "http.response.body", "body": part, "more_body": True})
        at += _BYTES_AT_ONCE
    await send({"type": "http.response.body", "body": body[at:]})


async def send_json(
    send: Send, value: object, *, status: int = 200, headers: Sequence[Header] = ()
) -> None:
    """Answer with JSON."""
    await send_body(send, encode_json(value), status=status, headers=[JSON_HEADER, *headers])


class Shaped(NamedTuple):
    """An error in the form of the API that was used.

    Attributes:
        status: of the answer.
        headers: of that form.
        body: whole.
    """

    status: int
    headers: Sequence[Header]
    body: bytes


async def send_error(
    send: Send, error: GatewayError, headers: Sequence[Header] = (), shaped: Shaped | None = None
) -> None:
    """Answer with OpenAI's error object, or in another form."""
    if shaped is None:
        shaped = Shaped(error.status, [JSON_HEADER], encode_json(error.body()))
    extra = [*shaped.headers, *error_headers(error), *headers]
    if error.status in _LEAVES_BODY_UNREAD:
        extra.append(CLOSE)
    await send_body(send, shaped.body, status=shaped.status, headers=extra)


def error_headers(error: GatewayError) -> list[Header]:
    """What the answer says of an error beside its body."""
    found: list[Header] = []
    if error.retry_after is not None:
        found.append((b"retry-after", b"%d" % math.ceil(error.retry_after)))
        # Whole seconds are coarse; OpenAI's clients look here first.
        found.append((b"retry-after-ms", b"%d" % math.ceil(1000 * error.retry_after)))
    if isinstance(error, RateLimited):
        found += [(name.encode(), value.encode()) for name, value in error.headers.items()]
    elif _is_vain(error):
        found.append((b"x-should-retry", b"false"))  # OpenAI's clients would, on any 429 or 503
    if error.status == 401:
        found.append((b"www-authenticate", b"Bearer"))
    return found


def _is_vain(error: GatewayError) -> bool:
    """Whether trying again is in vain, or not wanted."""
    is_spent = isinstance(error, InsufficientQuota) and error.retry_after is None
    return is_spent or isinstance(error, RequestCancelled)


def ignored_header(names: Sequence[str]) -> list[Header]:
    """``x-gateway-ignored-params``, or nothing; names a header cannot carry are counted."""
    if not names:
        return []
    safe = [name for name in names if re.fullmatch(r"[A-Za-z0-9_.\[\]-]{1,96}", name)][:32]
    rest = len(names) - len(safe)
    value = ", ".join([*safe, *([f"({rest} more)"] if rest else [])])
    return [(b"x-gateway-ignored-params", value.encode())]
