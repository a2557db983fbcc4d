"""Embeddings: ``/api/embed`` and the older ``/api/embeddings``."""

from __future__ import annotations

from typing import Any

import msgspec

from gatewayd_hooks.protocols import Embeddings, Gateway, Handler, HttpRequest, HttpResponse
from gatewayd_hooks.requests.checking import check
from gatewayd_proto_ollama import models
from gatewayd_proto_ollama.error_fields import renamed, translated
from gatewayd_proto_ollama.tables import EmbeddingsRequest, EmbedRequest

Fields = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_NANO = 1_000_000_000
_EMBED = {"truncate_prompt_tokens": "truncate"}
_EMBEDDINGS = {"input": "prompt"}
"""Fields of the gateway's body, and their names in Ollama's requests."""


def embedding(gateway: Gateway) -> Handler:
    """Return the handler of ``/api/embed``."""

    def read(fields: Fields) -> tuple[Fields, str, list[str]]:
        """Return the body, the model's name as requested, and ignored fields."""
        table, ignored = check(EmbedRequest, fields)
        name = models.resolve(gateway, table.model)
        body: Fields = {"model": name, "input": table.input or []}
        if table.truncate is not False:
            # -1 is the context's length.
            body["truncate_prompt_tokens"] = -1
        if table.dimensions:
            body["dimensions"] = table.dimensions
        return body, table.model, ignored

    async def answered(request: HttpRequest) -> HttpResponse:
        body, model, ignored = await gateway.read(request, read)
        shown: Fields = {"model": model, "embeddings": []}
        if body["input"] == []:
            await gateway.load(body["model"])
        else:
            with translated(renamed(_EMBED)):
                shown |= _response(await gateway.embed(body, request))
        return HttpResponse(_encode(shown), ignored=ignored, names=_EMBED)

    return answered


def embedding_one(gateway: Gateway) -> Handler:
    """Return the handler of ``/api/embeddings``: one text, its vector not normalized."""

    def read(fields: Fields) -> tuple[str, str, list[str]]:
        """Return the model, the text, and ignored fields."""
        table, ignored = check(EmbeddingsRequest, fields)
        name = models.resolve(gateway, table.model)
        return name, table.prompt or "", ignored

    async def answered(request: HttpRequest) -> HttpResponse:
        name, prompt, ignored = await gateway.read(request, read)
        vector: list[float] = []
        if prompt:
            body: Fields = {"model": name, "input": prompt, "normalize": False}
            with translated(renamed(_EMBEDDINGS)):
                found = await gateway.embed({**body, "truncate_prompt_tokens": -1}, request)
            vector = list(found.vectors[0])
        else:
            await gateway.load(name)
        return HttpResponse(_encode({"embedding": vector}), ignored=ignored, names=_EMBEDDINGS)

    return answered


def _response(found: Embeddings) -> Fields:
    return {
        "embeddings": found.vectors,
        "total_duration": round(found.timing.total * _NANO),
        "load_duration": round(found.timing.queue * _NANO),
        "prompt_eval_count": found.usage.prompt_tokens,
    }
