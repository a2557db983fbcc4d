"""HTTP types for protocols: a request with its complete body, and a response."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gatewayd_hooks.requests.strict_json import decode_object


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Request with its complete body.

    Attributes:
        method: in upper case.
        path: as requested.
        params: values of the route's path parameters.
        query: query parameters of the URL.
        headers: names in lower case.
        body: limited to the gateway's maximum size.
        request_id: the gateway's id, also sent as ``x-request-id`` of the response unless the
            client sent one.
    """

    method: str
    path: str
    params: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    request_id: str

    def json(self) -> dict[str, Any]:
        """Decode the body as an object; strict, so that it has only one interpretation.

        Slow for a body of megabytes: ``Gateway.read`` decodes those off the event loop.

        Raises:
            Refusal: see ``decode_object``.
        """
        return decode_object(self.body)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Response to a request.

    Attributes:
        body: the complete body, or an iterator of pieces, each written as it arrives. An exception
            before the first piece sets the status; a ``Refusal`` after it is passed to
            ``ProtocolStrategy.late_error``. The iterator is closed in any case.
        status: HTTP status.
        content_type: of the body.
        headers: further headers.
        ignored: request fields that were accepted without effect; the gateway lists them in
            ``x-gateway-ignored-params``.
        names: this API's names of fields in bodies passed to the gateway, for those that the
            gateway ignores.
        keepalive: written while no pieces arrive; empty for nothing.
    """

    body: bytes | AsyncIterator[bytes]
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    ignored: Sequence[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    keepalive: bytes = b""


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """Answer to ``Gateway.call``. New in 1.29.

    Attributes:
        status: HTTP status.
        headers: names in lower case.
        body: pieces as they are written; once. It raises ``ConnectionError`` if they end early.
    """

    status: int
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]

    async def read(self) -> bytes:
        """Return the rest of the body.

        Raises:
            ConnectionError: it ends early.
        """
        return b"".join([piece async for piece in self.body])
