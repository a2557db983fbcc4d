"""HTTP as protocols see it: a request with its whole body, and an answer to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gatewayd_hooks.requests.strict_json import decode_object


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request, its body complete.

    Attributes:
        method: in capitals.
        path: as it was asked for.
        params: what stood in the route's braces.
        query: of the address.
        headers: names in small letters.
        body: at most as long as the gateway's limit.
        request_id: the gateway's, which is also in ``x-request-id`` of the answer unless the client
            sent one.
    """

    method: str
    path: str
    params: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    request_id: str

    def json(self) -> dict[str, Any]:
        """The body as an object; strict, so that no two parsers read two requests in it.

        Of a body of megabytes it takes long: ``Gateway.read`` does it where nobody waits.

        Raises:
            Refusal: see ``decode_object``.
        """
        return decode_object(self.body)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One answer.

    Attributes:
        body: all of it, or pieces, each written as it comes. What an iterator raises before its
            first piece has a status of its own; a ``Refusal`` after that is given to
            ``ProtocolStrategy.late_error``. Whatever happens the iterator is closed.
        status: of the answer.
        content_type: of the body.
        headers: others.
        ignored: fields of the request that were taken and not acted on; the gateway names them in
            ``x-gateway-ignored-params``.
        names: what this API calls fields of the bodies that the gateway was given, for those that
            the gateway ignores.
        keepalive: written while pieces do not come; empty for nothing.
    """

    body: bytes | AsyncIterator[bytes]
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    ignored: Sequence[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    keepalive: bytes = b""
