"""Protocols: routes of other APIs, served through the gateway's own chat completions.

A protocol translates the formats of its requests and responses; the gateway does the rest. Every
type that it needs can be imported from here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from gatewayd_hooks.requests.answers import (
    AnswerToken,
    ChatAnswer,
    Delta,
    Embeddings,
    Timing,
    Usage,
)
from gatewayd_hooks.requests.gateway import Gateway, ServedModel, ServedText
from gatewayd_hooks.requests.http import CallAnswer, HttpRequest, HttpResponse
from gatewayd_hooks.requests.models import PullProgress, StoredModel
from gatewayd_hooks.requests.refusal import Refusal, RequestRefusal
from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    from gatewayd_hooks.requests.tables import RequestTable
    from gatewayd_hooks.resources import GatewayResources

__all__ = [
    "AnswerToken",
    "CallAnswer",
    "ChatAnswer",
    "Delta",
    "Embeddings",
    "Gateway",
    "Handler",
    "HttpRequest",
    "HttpResponse",
    "ProtocolStrategy",
    "PullProgress",
    "Refusal",
    "RequestRefusal",
    "Route",
    "ServedModel",
    "ServedText",
    "ServesItself",
    "StoredModel",
    "Timing",
    "Usage",
]

Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


class Route(NamedTuple):
    """One method of one path.

    Attributes:
        method: ``GET``, ``POST``, ``DELETE`` or ``HEAD``.
        path: with parameters in braces, such as ``/api/show/{name}``.
        handler: handles its requests.
        summary: short description for ``/openapi.json``.
        request: table of its body, from which ``/openapi.json``, ``/v1/gateway/compat`` and tests
            are derived. The handler checks requests against it with ``checking.check``. New in 1.9.
        is_operators: whether the path is for the operator alone; others get 403. It applies to all
            methods of the path. New in 1.28.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    request: type[RequestTable] | None = None
    is_operators: bool = False


class ProtocolStrategy(Strategy, Protocol):
    """Routes of one API. Paths of the gateway itself, or of another protocol, are a conflict.

    Two protocols may serve different methods of the same path.

    Everything runs in the gateway's event loop: long work belongs in a thread.
    """

    def open(self, resources: GatewayResources) -> None:
        """Read the name of the served model."""

    def routes(self, gateway: Gateway) -> Sequence[Route]:
        """Return all routes; called once at start."""

    def error(self, refusal: RequestRefusal, request_id: str) -> HttpResponse:
        """Return the error response in this API's format; its body is bytes.

        Also called when the gateway refuses a request before a handler runs: for a missing key, a
        method that a path does not have, a body that is too large. The gateway adds ``retry-after``
        and similar headers.
        """

    def late_error(self, refusal: RequestRefusal, request_id: str) -> bytes:
        """Return an error event for a stream whose status was already sent."""


@runtime_checkable
class ServesItself(Protocol):
    """Optional methods of a protocol that listens on a port of its own. New in 1.29.

    It passes its requests to ``Gateway.call`` of the gateway that ``routes`` was given. If one of
    these methods raises, that is logged, and the daemon continues without the port.
    """

    async def start(self) -> None:
        """Listen; called once, in the event loop, after ``routes``."""

    async def stop(self, seconds: float) -> None:
        """Stop listening at once, and return when running requests have ended.

        Called once, also after a ``start`` that raised or took too long and was cancelled, and
        itself cancelled if the daemon stops earlier.

        Args:
            seconds: after which to cancel them.
        """
