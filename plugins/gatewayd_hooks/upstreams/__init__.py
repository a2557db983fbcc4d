"""Upstreams: servers of models to which the gateway relays requests.

A strategy translates: a body in the format of OpenAI's chat or text completions into requests of
the upstream's API, and their responses into deltas. Connections, time-outs, retries, concurrency
and accounting are the gateway's. Every type that it needs can be imported from here. New in 1.29.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Protocol

from gatewayd_hooks.requests.answers import Delta
from gatewayd_hooks.strategy import Strategy
from gatewayd_hooks.upstreams.relaying import (
    UpstreamCall,
    UpstreamCounts,
    UpstreamHttp,
    UpstreamOutput,
    UpstreamRefusal,
    UpstreamResources,
    UpstreamResponse,
)

__all__ = [
    "Delta",
    "UpstreamCall",
    "UpstreamCounts",
    "UpstreamHttp",
    "UpstreamOutput",
    "UpstreamRefusal",
    "UpstreamResources",
    "UpstreamResponse",
    "UpstreamStrategy",
]


class UpstreamStrategy(Strategy, Protocol):
    """Translator for one kind of upstream. Everything runs in the gateway's event loop."""

    def open(self, resources: UpstreamResources) -> None:
        """Read the credential."""

    def answer(self, call: UpstreamCall, http: UpstreamHttp) -> AsyncIterator[UpstreamOutput]:
        """Relay a request: an asynchronous generator of its output.

        It yields each delta as soon as it has arrived, and token counts whenever the upstream
        reports them, as a rule at the end. Each choice ends with a delta with a finish reason.
        Nothing of the upstream is trusted: what does not follow its API is an error.

        Raises:
            UpstreamRefusal: the upstream answered with an error.
            ValueError: its answer does not follow its API.
            OSError: the connection broke.
        """

    def probe(self, http: UpstreamHttp) -> Awaitable[None]:
        """Ask an endpoint that was ejected whether it serves again, by a cheap request.

        Raises:
            UpstreamRefusal: it answered with an error.
            OSError: no connection.
        """
