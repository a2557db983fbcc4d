"""Protocols: routes of other APIs, answered by the gateway's own chat completions.

A protocol knows the shapes of its requests and answers; the gateway does the rest. The common
language is OpenAI's: ``Gateway.chat`` takes the body of ``POST /v1/chat/completions`` as a
dictionary and refuses what that route would refuse.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec

from gatewayd_hooks.nesting import field_too_deep, too_deep
from gatewayd_hooks.parsing import Part
from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


T = TypeVar("T")


class Refusal(Exception):
    """An answer other than 200.

    Attributes:
        status: of the HTTP answer.
        message: a sentence for the client.
        type: OpenAI's family of the error, such as ``invalid_request_error``.
        code: what exactly went wrong; stable, for programs.
        param: the field at fault, in OpenAI's words, or None.
        retry_after: seconds after which to try again, or None.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        code: str = "invalid_value",
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.retry_after = retry_after

    def at(self, place: str) -> Refusal:
        """The same of a field as the client calls it, whose request was translated."""
        message = self.message
        if self.param is not None and message.startswith(self.param):
            message = place + message[len(self.param) :]
        return Refusal(
            *(self.status, message),
            type=self.type,
            code=self.code,
            param=place,
            retry_after=self.retry_after,
        )


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
            Refusal: it is not one, a key comes twice, or a number is none that JSON knows.
        """
        try:
            value = msgspec.json.decode(self.body)
            _find_duplicates(self.body.decode().lstrip())
        except (msgspec.DecodeError, ValueError) as error:
            raise Refusal(400, f"the body is not JSON: {error}", code="invalid_json") from None
        except RecursionError:
            name = field_too_deep(self.body)
            raise Refusal(400, too_deep(name), param=name, code="invalid_json") from None
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


class Usage(NamedTuple):
    """Tokens of an answer so far."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Timing(NamedTuple):
    """Where an answer's time went, in seconds; 0 for what has not begun.

    Attributes:
        queue: until the engine admitted it.
        prefill: from there to the first token.
        decode: from there to the last token.
        total: since the request came.
    """

    queue: float
    prefill: float
    decode: float
    total: float


class Delta(NamedTuple):
    """What has come to one choice since the last time.

    Attributes:
        choice: which, from 0.
        parts: in order; may be empty at the end.
        finish_reason: ``stop``, ``length`` or ``tool_calls`` once it has ended.
        stop: the stop string that ended it, or None.
        logprobs: OpenAI's objects for the tokens of ``parts``; empty unless asked for.
    """

    choice: int
    parts: Sequence[Part]
    finish_reason: str | None = None
    stop: str | None = None
    logprobs: Sequence[dict[str, Any]] = ()


class ChatAnswer(Protocol):
    """An answer that is being generated.

    Attributes:
        id: of the answer, ``chatcmpl-...``.
        model: the name that was asked for.
        created: Unix time.
    """

    id: str
    model: str
    created: int

    def __aiter__(self) -> AsyncIterator[Delta]:
        """What comes, until every choice has ended; to be read once.

        Raises:
            Refusal: it failed.
        """

    @property
    def usage(self) -> Usage:
        """So far."""

    @property
    def timing(self) -> Timing:
        """So far."""

    def close(self) -> None:
        """Nobody reads any more: the engine stops. May be repeated."""


class Embeddings(NamedTuple):
    """Vectors of texts.

    Attributes:
        vectors: in the order of the texts.
        usage: of all of them.
        timing: of the whole.
    """

    vectors: Sequence[Sequence[float]]
    usage: Usage
    timing: Timing


class ServedModel(NamedTuple):
    """What is known of the model.

    Attributes:
        created: Unix time at which it began to be served.
        architecture: its class, such as ``LlamaForCausalLM``.
        num_parameters: of it.
        dtype: of its weights, such as ``bfloat16``.
        context_length: tokens of a prompt with its answer.
        chat_template: jinja2; empty for a model that cannot chat.
        calls_tools: whether a parser for its tool calls is there.
        reasons: whether a parser for its reasoning is there.
    """

    created: int
    architecture: str
    num_parameters: int
    dtype: str
    context_length: int
    chat_template: str
    calls_tools: bool
    reasons: bool


class Gateway(Protocol):
    """What the gateway does for protocols.

    Attributes:
        models: names of what is served; the first is the model's own.
        version: of the daemon.
    """

    models: Sequence[str]
    version: str

    @property
    def model(self) -> ServedModel | None:
        """What stands behind all names; None until an engine has loaded it."""

    async def read(self, request: HttpRequest, make: Callable[[dict[str, Any]], T]) -> T:
        """Parse a body and make something of it; of a large one beside the event loop.

        Args:
            request: whose body it is.
            make: is given ``request.json()``, perhaps in a thread; it should not keep it.

        Raises:
            Refusal: the body is no object, or ``make`` refuses it.
        """

    async def chat(self, body: Mapping[str, Any], request: HttpRequest) -> ChatAnswer:
        """Begin to answer a conversation.

        Args:
            body: as of ``POST /v1/chat/completions``; ``stream`` says whether what comes is shown
                before the end.
            request: whose client is watched: if it leaves, the answer ends.

        Raises:
            Refusal: as that route would.
        """

    async def count_tokens(self, body: Mapping[str, Any]) -> int:
        """Tokens of the prompt that ``chat`` would make of this body.

        They may be more than the context; of texts over a million characters they are not counted.

        Raises:
            Refusal: as that route would, but for the length.
        """

    async def generate(self, body: Mapping[str, Any], request: HttpRequest) -> ChatAnswer:
        """Begin to continue a text: as ``chat``, with a body of ``POST /v1/completions``.

        Without ``max_tokens`` the answer may fill the context, as in a chat.
        """

    async def embed(self, body: Mapping[str, Any], request: HttpRequest) -> Embeddings:
        """Make vectors of texts.

        Args:
            body: as of ``POST /v1/embeddings``; ``encoding_format`` changes nothing.
            request: whose client is watched: if it leaves, the work ends.

        Raises:
            Refusal: as that route would.
        """


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


class Route(NamedTuple):
    """One method of one path.

    Attributes:
        method: ``GET``, ``POST``, ``DELETE`` or ``HEAD``.
        path: with parameters in braces, such as ``/api/show/{name}``.
        handler: answers.
        summary: a few words for ``/openapi.json``.
    """

    method: str
    path: str
    handler: Handler
    summary: str


class ProtocolStrategy(Strategy, Protocol):
    """Routes of one API. Paths of the gateway's own, or of another protocol, are a conflict.

    Everything runs in the gateway's event loop: what takes long belongs into a thread.
    """

    def open(self, resources: GatewayResources) -> None:
        """Learn what is served."""

    def routes(self, gateway: Gateway) -> Sequence[Route]:
        """Every route; called once at start."""

    def error(self, refusal: Refusal, request_id: str) -> HttpResponse:
        """The answer that is an error, in this API's shape; its body is bytes.

        Also of what the gateway refuses before a handler is asked: a missing key, a method that a
        path does not have, a body that is too large. The gateway adds ``retry-after`` and the like.
        """

    def late_error(self, refusal: Refusal, request_id: str) -> bytes:
        """The same inside of a stream whose status was sent."""
