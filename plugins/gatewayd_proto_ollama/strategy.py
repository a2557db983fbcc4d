"""``/api/chat``, ``/api/generate``, and what clients ask before."""

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
from gatewayd_proto_ollama import models
from gatewayd_proto_ollama.answers import Lines, Reader
from gatewayd_proto_ollama.config import OllamaConfig
from gatewayd_proto_ollama.places import places, told
from gatewayd_proto_ollama.requests import RENAMED, OllamaRequest, chat_of, generate_of
from gatewayd_proto_ollama.tables import (
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    OllamaChatRequest,
    ShowRequest,
)
from gatewayd_proto_ollama.vectors import embedding, embedding_one

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources

_encode = msgspec.json.Encoder().encode


class Ollama:
    """Ollama's API over chat completions."""

    def __init__(self, config: OllamaConfig) -> None:
        self._version = config.version

    def open(self, resources: GatewayResources) -> None:
        """Nothing to take."""

    def close(self) -> None:
        """Nothing to give back."""

    def routes(self, gateway: Gateway) -> Sequence[Route]:
        """Answers, models, and that it runs."""
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
                *("POST", "/api/embed", embedding(gateway), "Texts to vectors (Ollama)"),
                request=EmbedRequest,
            ),
            Route(
                *("POST", "/api/embeddings", embedding_one(gateway)),
                "A text to a vector (Ollama)",
                request=EmbeddingsRequest,
            ),
            Route("GET", "/api/tags", _telling(lambda: models.tags(gateway)), "Models (Ollama)"),
            Route(
                *("POST", "/api/show", _showing(gateway), "Describe a model (Ollama)"),
                request=ShowRequest,
            ),
            Route("GET", "/api/ps", _telling(lambda: models.running(gateway)), "Loaded (Ollama)"),
            Route(
                *("GET", "/api/version", _telling(lambda: {"version": self._version})),
                "The version of its API (Ollama)",
            ),
            Route("GET", "/", _runs, "That it runs (Ollama)"),
            Route("HEAD", "/", _runs, "That it runs (Ollama)"),
        ]

    def error(self, refusal: RequestRefusal, request_id: str) -> HttpResponse:
        """An object with the sentence."""
        return HttpResponse(self.late_error(refusal, request_id), status=refusal.status)

    def late_error(self, refusal: RequestRefusal, request_id: str) -> bytes:
        """The same in a line of the stream."""
        return _encode({"error": refusal.message}) + b"\n"


async def _runs(request: HttpRequest) -> HttpResponse:
    return HttpResponse(b"Ollama is running", content_type="text/plain; charset=utf-8")


def _telling(tell: Callable[[], dict[str, Any]]) -> Handler:
    async def telling(request: HttpRequest) -> HttpResponse:
        return _json(tell())

    return telling


def _showing(gateway: Gateway) -> Handler:
    async def showing(request: HttpRequest) -> HttpResponse:
        asked, ignored = await gateway.read(request, partial(check, ShowRequest))
        name = models.resolve(gateway, asked.model or asked.name)
        return HttpResponse(_encode(models.shown(gateway, name)), ignored=ignored)

    return showing


def _json(value: dict[str, Any]) -> HttpResponse:
    return HttpResponse(_encode(value))


def _answering(gateway: Gateway, *, is_chat: bool) -> Handler:
    def read(fields: dict[str, Any]) -> tuple[OllamaRequest, str]:
        """The request, and the model as it was named."""
        model = gateway.model
        can_chat = model is None or bool(model.chat_template)
        asked = chat_of(fields) if is_chat else generate_of(fields, can_chat=can_chat)
        name = asked.body["model"]
        asked.body["model"] = models.resolve(gateway, name)
        return asked, name

    async def answered(request: HttpRequest) -> HttpResponse:
        asked, model = await gateway.read(request, read)
        lines = Lines(model, is_chat=is_chat, thinks=asked.thinks)
        if asked.is_load:
            models.loaded(gateway)
            return HttpResponse(lines.loaded(), ignored=asked.ignored)
        answer = await _begin(gateway, asked, request)
        if asked.body["stream"]:
            return HttpResponse(
                _stream(answer, lines, asked),
                content_type="application/x-ndjson",
                headers={"cache-control": "no-cache"},
                ignored=asked.ignored,
                names=RENAMED,
            )
        return HttpResponse(
            await _whole(answer, lines, asked), ignored=asked.ignored, names=RENAMED
        )

    return answered


async def _begin(gateway: Gateway, asked: OllamaRequest, request: HttpRequest) -> ChatAnswer:
    """Ask the gateway; ``num_predict`` over what the context has left is a bound and no wish."""
    begin = gateway.generate if asked.is_raw else gateway.chat
    try:
        with told(places(asked)):
            return await begin(asked.body, request)
    except RequestRefusal as refusal:
        if (refusal.code, refusal.param) != (
            "context_length_exceeded",
            "options.num_predict",
        ):
            raise
    body = {name: value for name, value in asked.body.items() if name != "max_tokens"}
    with told(places(asked)):
        return await begin(body, request)


async def _stream(answer: ChatAnswer, lines: Lines, asked: OllamaRequest) -> AsyncIterator[bytes]:
    """One piece for all that has come since the last one was taken."""
    reader = Reader()
    try:
        with told(places(asked)):
            async for delta in answer:
                is_last = delta.finish_reason is not None
                said = reader.take(delta.parts, is_last=is_last)
                found = lines.line(said, delta.logprobs)
                if is_last:
                    end = lines.answer(Reader().take((), is_last=True)) | lines.end(answer, delta)
                    found += _encode(end) + b"\n"
                if found:
                    yield found
    finally:
        answer.close()


async def _whole(answer: ChatAnswer, lines: Lines, asked: OllamaRequest) -> bytes:
    parts: list[Part] = []
    logprobs: list[dict[str, Any]] = []
    last = Delta(0, ())
    with told(places(asked)):
        async for last in answer:
            parts += last.parts
            logprobs += last.logprobs
    said = Reader().take(parts, is_last=True)
    return _encode(lines.answer(said, logprobs) | lines.end(answer, last))
