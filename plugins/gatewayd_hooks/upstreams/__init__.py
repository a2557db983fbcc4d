"""Upstreams: servers of models to which the gateway relays requests.

A strategy translates: a body in the format of OpenAI's chat or text completions into requests of
the upstream's API, and their responses into deltas; optionally embeddings, too. Connections,
time-outs, retries, concurrency and accounting are the gateway's. Every type that it needs can be
imported from here. New in 1.29.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Protocol, runtime_checkable

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
    UpstreamVectors,
    VectorsDecoder,
)

__all__ = [
    "Delta",
    "EmbedsInputs",
    "UpstreamCall",
    "UpstreamCounts",
    "UpstreamHttp",
    "UpstreamOutput",
    "UpstreamRefusal",
    "UpstreamResources",
    "UpstreamResponse",
    "UpstreamStrategy",
    "UpstreamVectors",
    "VectorsDecoder",
]


class UpstreamStrategy(Strategy, Protocol):
    """Translator for one kind of upstream. Everything runs in the gateway's event loop.

    With the optional method of ``EmbedsInputs`` it relays embeddings, too.
    """

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


@runtime_checkable
class EmbedsInputs(Protocol):
    """Optional method of an upstream's strategy: embeddings. New in 1.29.

    Without it, requests for embeddings of the upstream's models are refused with 400.
    """

    def embed(self, call: UpstreamCall, http: UpstreamHttp) -> Awaitable[VectorsDecoder]:
        """Relay a request for embeddings, and receive its whole answer.

        ``call.body["input"]`` is a text, a list of texts, a list of token ids, or a list of those.

        Returns:
            The decoder of the answer; called once, in a thread, as large answers take long. It
            raises ``ValueError`` if the answer does not follow the upstream's API.

        Raises:
            UpstreamRefusal: the upstream answered with an error, or has no such request.
            ValueError: its answer does not follow its API.
            OSError: the connection broke.
        """
