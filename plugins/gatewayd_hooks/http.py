"""HTTP as protocols see it: a request with its whole body, and an answer to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gatewayd_hooks.nesting import field_too_deep, is_too_deep, too_deep
from gatewayd_hooks.num_values import TOO_MANY, has_too_many
from gatewayd_hooks.refusal import Refusal


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
            Refusal: it is not one, has too many values, a key comes twice, or a number is none that
                JSON knows.
        """
        if has_too_many(self.body):
            raise Refusal(400, TOO_MANY, code="invalid_json")
        if is_too_deep(self.body):
            name = field_too_deep(self.body)
            raise Refusal(400, too_deep(name), param=name, code="invalid_json")
        try:
            value = msgspec.json.decode(self.body)
            _find_duplicates(self.body.decode().lstrip())
        except (msgspec.DecodeError, ValueError) as error:
            raise Refusal(400, f"the body is not JSON: {error}", code="invalid_json") from None
        if not isinstance(value, dict):
            raise Refusal(400, "the body must be a JSON object", code="invalid_json")
        return value


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) == len(pairs):
        return
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"the key {key[:64]!r} comes twice")
        seen.add(key)


_find_duplicates = json.JSONDecoder(object_pairs_hook=_unique).raw_decode
"""msgspec keeps the last of two equal keys and says nothing."""


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
