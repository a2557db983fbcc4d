"""Upstream without a network, for tests of strategies: its responses are scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class SentRequest(NamedTuple):
    """Request of a strategy.

    Attributes:
        method: ``GET`` or ``POST``.
        path: below the upstream's URL.
        body: of a ``POST``.
        headers: the strategy's own.
    """

    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]


@dataclass
class ScriptedResponse:
    """Response; implements ``UpstreamResponse``.

    Attributes:
        body: its bytes.
        status: HTTP status.
        content_type: media type.
        breaks: whether the connection breaks at the end of ``body``.
    """

    body: bytes
    status: int = 200
    content_type: str = "text/event-stream"
    breaks: bool = False

    async def lines(self) -> AsyncIterator[bytes]:
        """See ``UpstreamResponse``."""
        for line in self.body.splitlines():
            yield line
        if self.breaks:
            raise ConnectionError("it broke its answer off")

    async def read_answer(self) -> bytes:
        """See ``UpstreamResponse``."""
        return await self.read()

    async def read(self) -> bytes:
        """See ``UpstreamResponse``."""
        if self.breaks:
            raise ConnectionError("it broke its answer off")
        return self.body


@dataclass
class FakeUpstreamHttp:
    """Implements ``UpstreamHttp``.

    Attributes:
        responses: for the requests in order, the last one for all further ones.
        sent: the requests so far.
    """

    responses: Sequence[ScriptedResponse]
    sent: list[SentRequest] = field(default_factory=list)

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> ScriptedResponse:
        """See ``UpstreamHttp``."""
        return self._answer(SentRequest("POST", path, body, headers))

    async def get(self, path: str, headers: Mapping[str, str]) -> ScriptedResponse:
        """See ``UpstreamHttp``."""
        return self._answer(SentRequest("GET", path, b"", headers))

    def _answer(self, request: SentRequest) -> ScriptedResponse:
        self.sent.append(request)
        return self.responses[min(len(self.sent), len(self.responses)) - 1]
