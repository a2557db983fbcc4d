"""``/api/embed`` and the older ``/api/embeddings``: vectors of texts."""

from __future__ import annotations

from typing import Any

import msgspec

from gatewayd_hooks.protocols import Embeddings, Gateway, Handler, HttpRequest, HttpResponse
from gatewayd_proto_ollama import models
from gatewayd_proto_ollama.requests import wrong

Fields = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_NANO = 1_000_000_000
_EMBED = frozenset(("model", "input", "truncate", "dimensions"))
_EMBEDDINGS = frozenset(("model", "prompt"))


def embedding(gateway: Gateway) -> Handler:
    """Answers ``/api/embed``."""

    def read(fields: Fields) -> tuple[Fields, str, list[str]]:
        """The body, the model as it was named, and what is ignored."""
        name = models.resolve(gateway, fields.get("model"))
        body: Fields = {"model": name, "input": fields.get("input") or []}
        truncate = fields.get("truncate")
        if truncate is not None and not isinstance(truncate, bool):
            wrong("truncate", "must be true or false", code="invalid_type")
        if truncate is not False:
            body["truncate_prompt_tokens"] = -1
        if fields.get("dimensions"):
            body["dimensions"] = fields["dimensions"]
        if body["input"] != []:
            _check_texts(body["input"])
        return body, fields["model"], _ignored(fields, _EMBED)

    async def answered(request: HttpRequest) -> HttpResponse:
        body, model, ignored = await gateway.read(request, read)
        shown: Fields = {"model": model, "embeddings": []}
        if body["input"] == []:
            models.loaded(gateway)
        else:
            shown |= _told(await gateway.embed(body, request))
        return HttpResponse(_encode(shown), ignored=ignored)

    return answered


def embedding_one(gateway: Gateway) -> Handler:
    """Answers ``/api/embeddings``: one text, its vector as long as it is."""

    def read(fields: Fields) -> tuple[str, str, list[str]]:
        """The model, the text, and what is ignored."""
        name = models.resolve(gateway, fields.get("model"))
        prompt = fields.get("prompt") or ""
        if prompt and not isinstance(prompt, str):
            wrong("prompt", "must be a string", code="invalid_type")
        return name, prompt or "", _ignored(fields, _EMBEDDINGS)

    async def answered(request: HttpRequest) -> HttpResponse:
        name, prompt, ignored = await gateway.read(request, read)
        vector: list[float] = []
        if prompt:
            body: Fields = {"model": name, "input": prompt, "normalize": False}
            told = await gateway.embed({**body, "truncate_prompt_tokens": -1}, request)
            vector = list(told.vectors[0])
        else:
            models.loaded(gateway)
        return HttpResponse(_encode({"embedding": vector}), ignored=ignored)

    return answered


def _check_texts(given: object) -> None:
    """Refuse token ids, which this API does not have."""
    if isinstance(given, str):
        return
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        wrong("input", "must be a string or a list of strings", code="invalid_type")


def _told(found: Embeddings) -> Fields:
    return {
        "embeddings": found.vectors,
        "total_duration": round(found.timing.total * _NANO),
        "load_duration": round(found.timing.queue * _NANO),
        "prompt_eval_count": found.usage.prompt_tokens,
    }


def _ignored(fields: Fields, known: frozenset[str]) -> list[str]:
    return [name for name, value in fields.items() if name not in known and value is not None]
