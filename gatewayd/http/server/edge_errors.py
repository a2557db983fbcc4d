"""Error responses written by the edge itself, before or instead of the app's response."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gatewayd.errors import GatewayError
from gatewayd.http.asgi import JSON_HEADER, Header, encode_json, error_headers
from gatewayd.http.server.request_id import NAME, answered_id, new_id

Answered = Callable[[str, str, int], None]
"""Counts a response: endpoint, method and status."""

REFUSED = "gatewayd.refused"
"""Scope key of the status of a response that the edge sent instead of the app."""

_REASONS = {
    400: b"Bad Request",
    408: b"Request Timeout",
    413: b"Content Too Large",
    431: b"Request Header Fields Too Large",
    503: b"Service Unavailable",
}


def refusal(error: GatewayError, request_headers: Sequence[Header]) -> bytes:
    """Build a complete error response, after which the connection is closed."""
    body = encode_json(error.body())
    headers = [
        JSON_HEADER,
        *error_headers(error),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        (NAME, answered_id(request_headers, new_id())),
    ]
    lines = b"".join(b"%b: %b\r\n" % line for line in headers)
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (error.status, _REASONS[error.status], lines, body)
