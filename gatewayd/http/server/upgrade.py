"""Requests that offer to go on in another protocol, read as if they did not.

Java's ``HttpClient`` and ``curl --http2`` offer h2c with every request. A server may ignore that
(RFC 9110, section 7.8), but the parser takes the offer as accepted: it stops behind the headers
and leaves the body for the other protocol.
"""

from __future__ import annotations

from collections.abc import Iterable

from gatewayd.http.asgi import Header

_OFFERS = frozenset((b"upgrade", b"http2-settings"))


def without_upgrade(method: bytes, url: bytes, version: str, headers: Iterable[Header]) -> bytes:
    """The head of a request as it would be without the offer.

    Args:
        method: of the request, as all that follow.
        url: as it came.
        version: of HTTP.
        headers: names in lower case.
    """
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            tokens = [token.strip() for token in value.split(b",")]
            rest = b", ".join(token for token in tokens if token.lower() not in _OFFERS)
            lines.append(name + b": " + rest)
        elif name not in _OFFERS:
            lines.append(name + b": " + value)
    return b"\r\n".join([*lines, b"", b""])
