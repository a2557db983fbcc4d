"""What upstream strategies are given, and what they return: calls, HTTP, counts and refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from gatewayd_hooks.requests.answers import Delta


@dataclass(frozen=True, slots=True)
class UpstreamResources:
    """Properties of one upstream, for its strategy.

    Attributes:
        name: of the upstream in the configuration.
        api_key: credential for its requests; empty for none.
    """

    name: str
    api_key: str = ""


class UpstreamCall(NamedTuple):
    """Request to be relayed.

    Attributes:
        kind: ``chat`` for chat completions, ``completion`` for text completions of one prompt,
            ``embedding`` for embeddings of one or several inputs.
        body: fields as in OpenAI's API, checked by the gateway; ``model`` is the upstream's name of
            the model. Without ``stream`` and ``stream_options``: answers are always streamed,
            except embeddings.
        request_id: the gateway's id, for the upstream's log.
    """

    kind: Literal["chat", "completion", "embedding"]
    body: Mapping[str, Any]
    request_id: str = ""


class UpstreamCounts(NamedTuple):
    """Token counts that an upstream reports, of all choices together.

    Attributes:
        prompt_tokens: of the prompt, cached ones included.
        completion_tokens: generated so far.
        cached_tokens: prompt tokens found in a prefix cache.
        reasoning_tokens: generated ones that were reasoning; None if not reported.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int | None = None


UpstreamOutput = Delta | UpstreamCounts


class UpstreamVectors(NamedTuple):
    """Embeddings that an upstream returns.

    Attributes:
        vectors: one for each input, in the order of the inputs: numbers, or little-endian float32
            as bytes. The gateway checks their number, lengths and values.
        prompt_tokens: of all inputs; None if not reported.
    """

    vectors: Sequence[Sequence[float] | bytes]
    prompt_tokens: int | None = None


VectorsDecoder = Callable[[], UpstreamVectors]
"""Decodes an answer of embeddings, see ``EmbedsInputs``."""


class UpstreamRefusal(Exception):
    """The upstream answered with an error.

    Attributes:
        status: HTTP status, at least 400; within a stream, the one that the error corresponds to.
        message: the upstream's own; empty if it gave none.
        param: field of the request at fault, in OpenAI's terms; None if unknown.
        code: the upstream's error code; None if it gave none.
    """

    def __init__(
        self, status: int, message: str = "", *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.param = param
        self.code = code


class UpstreamResponse(Protocol):
    """Response of an upstream; its sizes are limited by the gateway.

    Attributes:
        status: HTTP status; a redirect is not followed.
        content_type: media type in lower case, without parameters; empty if missing.
    """

    status: int
    content_type: str

    def lines(self) -> AsyncIterator[bytes]:
        """Iterate over the lines of the body as they arrive, without their ends.

        Raises:
            ValueError: a line, or the whole, is too long.
            OSError: the connection broke.
        """

    async def read_answer(self) -> bytes:
        """Return the whole body of an answer that is not streamed.

        Raises:
            ValueError: it is too long, or compressed.
            OSError: the connection broke.
        """

    async def read(self) -> bytes:
        """Return the body, or its beginning if it is too long for an error message.

        Raises:
            OSError: the connection broke.
        """


class UpstreamHttp(Protocol):
    """HTTP client of one request, which the gateway gives to a strategy."""

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> UpstreamResponse:
        """Send a request; the gateway may send it again if no byte of an answer has arrived.

        Args:
            path: appended to the configured URL, such as ``/chat/completions``.
            body: JSON.
            headers: in addition to ``content-type`` and the gateway's own.

        Raises:
            OSError: no connection.
        """

    async def get(self, path: str, headers: Mapping[str, str]) -> UpstreamResponse:
        """Send a GET request.

        Raises:
            OSError: no connection.
        """
