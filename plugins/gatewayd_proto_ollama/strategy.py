"""Routes ``/api/chat``, ``/api/generate``, and those for model information."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from gatewayd_hooks.parsing import Part
from gatewayd_hooks.protocols import (
    ChatAnswer,
    Delta,
    Gateway,
    Handler,
    HttpRequest,
    HttpResponse,
    RequestRefusal,
    Route,
)
from gatewayd_hooks.requests.checking import check
from gatewayd_proto_ollama import models, stored
from gatewayd_proto_ollama.answers import Lines, Reader
from gatewayd_proto_ollama.config import OllamaConfig
from gatewayd_proto_ollama.error_fields import error_fields, translated
from gatewayd_proto_ollama.requests import RENAMED, OllamaRequest, convert_chat, convert_generate
from gatewayd_proto_ollama.tables import (
    DeleteRequest,
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    OllamaChatRequest,
    PullRequest,
    ShowRequest,
)
from gatewayd_proto_ollama.vectors import embedding, embedding_one

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources

_encode = msgspec.json.Encoder().encode


class Ollama:
    """Ollama's API on top of chat completions."""

    def __init__(self, config: OllamaConfig) -> None:
        self._version = config.version

    def open(self, resources: GatewayResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def routes(self, gateway: Gateway) -> Sequence[Route]:
        """Return the routes for generation, models, and the health check."""
        return [
            Route(
                *("POST", "/api/chat", _answering(gateway, is_chat=True), "Chat (Ollama)"),
                request=OllamaChatRequest,
            ),
            Route(
                *("POST", "/api/generate", _answering(gateway, is_chat=False), "Answer (Ollama)"),
                request=GenerateRequest,
            ),
            Route(
                *("POST", "/api/embed", embedding(gateway), "Embed texts (Ollama)"),
                request=EmbedRequest,
            ),
            Route(
                *("POST", "/api/embeddings", embedding_one(gateway)),
                "Embed a text (Ollama)",
                request=EmbeddingsRequest,
            ),
            Route("GET", "/api/tags", _listing(gateway), "Models (Ollama)"),
            Route(
                *("POST", "/api/pull", stored.pulling(gateway), "Fetch a model (Ollama)"),
                request=PullRequest,
                is_operators=True,
            ),
            Route(
                *("DELETE", "/api/delete", stored.deleting(gateway), "Delete a model (Ollama)"),
                request=DeleteRequest,
                is_operators=True,
            ),
            Route(
                *("POST", "/api/show", _showing(gateway), "Describe a model (Ollama)"),
                request=ShowRequest,
            ),
            Route("GET", "/api/ps", _reporting(lambda: models.running(gateway)), "Loaded (Ollama)"),
            Route(
                *("GET", "/api/version", _reporting(lambda: {"version": self._version})),
                "API version (Ollama)",
            ),
            Route("GET", "/", _runs, "Health check (Ollama)"),
            Route("HEAD", "/", _runs, "Health check (Ollama)"),
        ]

    def error(self, refusal: RequestRefusal, request_id: str) -> HttpResponse:
        """Return an object with the message."""
        return HttpResponse(self.late_error(refusal, request_id), status=refusal.status)

    def late_error(self, refusal: RequestRefusal, request_id: str) -> bytes:
        """Return the same as a line of the stream."""
        return _encode({"error": refusal.message}) + b"\n"


async def _runs(request: HttpRequest) -> HttpResponse:
    return HttpResponse(b"Ollama is running", content_type="text/plain; charset=utf-8")


def _reporting(report: Callable[[], dict[str, Any]]) -> Handler:
    async def reporting(request: HttpRequest) -> HttpResponse:
        return _json(report())

    return reporting


def _listing(gateway: Gateway) -> Handler:
    async def listing(request: HttpRequest) -> HttpResponse:
        return _json(await stored.listed(gateway))

    return listing


def _showing(gateway: Gateway) -> Handler:
    async def showing(request: HttpRequest) -> HttpResponse:
        converted, ignored = await gateway.read(request, partial(check, ShowRequest))
        asked = converted.model or converted.name
        try:
            found = models.shown(gateway, models.resolve(gateway, asked))
        except RequestRefusal as refusal:
            if refusal.code != "model_not_found":
                raise
            other = await stored.find_stored(gateway, asked or "")
            if other is None:
                raise
            found = stored.described(other)
        return HttpResponse(_encode(found), ignored=ignored)

    return showing


def _json(value: dict[str, Any]) -> HttpResponse:
    return HttpResponse(_encode(value))


def _answering(gateway: Gateway, *, is_chat: bool) -> Handler:
    def can_chat(name: str) -> bool:
        return bool(gateway.text_of(models.resolve(gateway, name)).chat_template)

    def read(fields: dict[str, Any]) -> tuple[OllamaRequest, str]:
        """Convert a request; also return the model's name as requested."""
        converted = convert_chat(fields) if is_chat else convert_generate(fields, can_chat)
        name = converted.body["model"]
        converted.body["model"] = models.resolve(gateway, name)
        return converted, name

    async def answered(request: HttpRequest) -> HttpResponse:
        converted, model = await gateway.read(request, read)
        lines = Lines(model, is_chat=is_chat, thinks=converted.thinks)
        if converted.is_load:
            await gateway.load(converted.body["model"])
            return HttpResponse(lines.loaded(), ignored=converted.ignored)
        answer = await _start(gateway, converted, request)
        if converted.body["stream"]:
            return HttpResponse(
                _stream(answer, lines, converted),
                content_type="application/x-ndjson",
                headers={"cache-control": "no-cache"},
                ignored=converted.ignored,
                names=RENAMED,
            )
        return HttpResponse(
            await _whole(answer, lines, converted), ignored=converted.ignored, names=RENAMED
        )

    return answered


async def _start(gateway: Gateway, converted: OllamaRequest, request: HttpRequest) -> ChatAnswer:
    """Start generation; ``num_predict`` beyond the context is a bound, and reduced to it."""
    begin = gateway.generate if converted.is_raw else gateway.chat
    try:
        with translated(error_fields(converted)):
            return await begin(converted.body, request)
    except RequestRefusal as refusal:
        if (refusal.code, refusal.param) != (
            "context_length_exceeded",
            "options.num_predict",
        ):
            raise
    body = {name: value for name, value in converted.body.items() if name != "max_tokens"}
    with translated(error_fields(converted)):
        return await begin(body, request)


async def _stream(
    answer: ChatAnswer, lines: Lines, converted: OllamaRequest
) -> AsyncIterator[bytes]:
    """Yield one piece for all output since the last one."""
    reader = Reader()
    try:
        with translated(error_fields(converted)):
            async for delta in answer:
                is_last = delta.finish_reason is not None
                content = reader.read(delta.parts, is_last=is_last)
                found = lines.line(content, delta.logprobs)
                if is_last:
                    # The last line has no content, only the totals.
                    end = lines.answer(Reader().read((), is_last=True)) | lines.end(answer, delta)
                    found += _encode(end) + b"\n"
                if found:
                    yield found
    finally:
        # Also when the client disconnects, which ends the generation.
        answer.close()


async def _whole(answer: ChatAnswer, lines: Lines, converted: OllamaRequest) -> bytes:
    parts: list[Part] = []
    logprobs: list[dict[str, Any]] = []
    last = Delta(0, ())
    with translated(error_fields(converted)):
        async for last in answer:
            parts += last.parts
            logprobs += last.logprobs
    content = Reader().read(parts, is_last=True)
    return _encode(lines.answer(content, logprobs) | lines.end(answer, last))
