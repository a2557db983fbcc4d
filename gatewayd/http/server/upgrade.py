"""Removal of offered protocol upgrades from requests.

Java's ``HttpClient`` and ``curl --http2`` offer h2c with every request. A server may ignore that
(RFC 9110, section 7.8), but the parser assumes that the offer is accepted: it stops after the
headers and leaves the body for the other protocol.
"""

from __future__ import annotations

from collections.abc import Iterable

from gatewayd.http.asgi import Header

_OFFERS = frozenset((b"upgrade", b"http2-settings"))


def without_upgrade(method: bytes, url: bytes, version: str, headers: Iterable[Header]) -> bytes:
    """Serialize the head of a request without the offer.

    Args:
        method: of the request.
        url: as received.
        version: of HTTP.
        headers: of the request, with names in lower case.
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
