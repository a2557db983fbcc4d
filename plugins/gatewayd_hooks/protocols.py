"""Protocols: routes of other APIs, answered by the gateway's own chat completions.

A protocol knows the shapes of its requests and answers; the gateway does the rest. All that it
meets can be imported from here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gatewayd_hooks.requests.answers import ChatAnswer, Delta, Embeddings, Timing, Usage
from gatewayd_hooks.requests.gateway import Gateway, ServedModel
from gatewayd_hooks.requests.http import HttpRequest, HttpResponse
from gatewayd_hooks.requests.refusal import Refusal, RequestRefusal
from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    from gatewayd_hooks.requests.tables import RequestTable
    from gatewayd_hooks.resources import GatewayResources

__all__ = [
    "ChatAnswer",
    "Delta",
    "Embeddings",
    "Gateway",
    "Handler",
    "HttpRequest",
    "HttpResponse",
    "ProtocolStrategy",
    "Refusal",
    "RequestRefusal",
    "Route",
    "ServedModel",
    "Timing",
    "Usage",
]

Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


class Route(NamedTuple):
    """One method of one path.

    Attributes:
        method: ``GET``, ``POST``, ``DELETE`` or ``HEAD``.
        path: with parameters in braces, such as ``/api/show/{name}``.
        handler: answers.
        summary: a few words for ``/openapi.json``.
        request: the table of its body, for all that is said of its fields: ``/openapi.json``,
            ``/v1/gateway/compat``, tests. The handler checks requests against it with
            ``checking.check``. New in 1.9.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    request: type[RequestTable] | None = None


class ProtocolStrategy(Strategy, Protocol):
    """Routes of one API. Paths of the gateway's own, or of another protocol, are a conflict.

    Everything runs in the gateway's event loop: what takes long belongs into a thread.
    """

    def open(self, resources: GatewayResources) -> None:
        """Learn what is served."""

    def routes(self, gateway: Gateway) -> Sequence[Route]:
        """Every route; called once at start."""

    def error(self, refusal: RequestRefusal, request_id: str) -> HttpResponse:
        """The answer that is an error, in this API's shape; its body is bytes.

        Also of what the gateway refuses before a handler is asked: a missing key, a method that a
        path does not have, a body that is too large. The gateway adds ``retry-after`` and the like.
        """

    def late_error(self, refusal: RequestRefusal, request_id: str) -> bytes:
        """The same inside of a stream whose status was sent."""
