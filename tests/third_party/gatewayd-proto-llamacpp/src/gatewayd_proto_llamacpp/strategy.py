"""``/completion`` and ``/props``, over the gateway's completions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from gatewayd_hooks.parsing import Text
from gatewayd_hooks.protocols import (
    ChatAnswer,
    Delta,
    Gateway,
    HttpRequest,
    HttpResponse,
    Refusal,
    Route,
)

from gatewayd_proto_llamacpp.config import LlamaCppSettings

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources

_NAMES = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "seed": "seed",
    "stop": "stop",
}
_KNOWN = {*_NAMES, "prompt", "n_predict", "stream"}
_TYPES = {401: "authentication_error", 404: "not_found_error", 503: "unavailable_error"}


class LlamaCpp:
    """Continues a text."""

    def __init__(self, config: LlamaCppSettings) -> None:
        self._n_predict = config.n_predict

    def open(self, resources: GatewayResources) -> None:
        """Nothing to take."""

    def close(self) -> None:
        """Nothing to give back."""

    def routes(self, gateway: Gateway) -> Sequence[Route]:
        """A way to generate, and what is said of the model."""

        async def complete(request: HttpRequest) -> HttpResponse:
            fields = request.json()
            body, ignored = self._read(fields), [name for name in fields if name not in _KNOWN]
            answer = await gateway.generate({**body, "model": gateway.models[0]}, request)
            if body["stream"]:
                return HttpResponse(
                    _events(answer),
                    content_type="text/event-stream",
                    ignored=ignored,
                    keepalive=b":\n\n",
                )
            text, last = "", Delta(0, ())
            async for last in answer:
                text += _text_of(last)
            return HttpResponse(json.dumps(_end(answer, last, text)).encode(), ignored=ignored)

        async def props(request: HttpRequest) -> HttpResponse:
            name = gateway.models[0]
            model = gateway.describe(name)
            if model is None:
                await gateway.load(name)
                model = gateway.describe(name)
            if model is None:
                raise Refusal(503, "the model is being loaded", code="engine_unavailable")
            body = {"model_path": name, "n_ctx": model.context_length}
            return HttpResponse(json.dumps(body).encode())

        return [
            Route("POST", "/completion", complete, "Continue a text (llama.cpp)"),
            Route("GET", "/props", props, "Describe the model (llama.cpp)"),
        ]

    def error(self, refusal: Refusal, request_id: str) -> HttpResponse:
        """A number, a sentence and a type."""
        return HttpResponse(json.dumps(_error(refusal)).encode(), status=refusal.status)

    def late_error(self, refusal: Refusal, request_id: str) -> bytes:
        """The same as an event."""
        return _event(_error(refusal))

    def _read(self, fields: dict[str, Any]) -> dict[str, Any]:
        prompt, count = fields.get("prompt"), fields.get("n_predict")
        if not isinstance(prompt, str):
            raise Refusal(400, "prompt must be a string", param="prompt")
        if count is not None and (isinstance(count, bool) or not isinstance(count, int)):
            raise Refusal(400, "n_predict must be an integer", param="n_predict")
        body: dict[str, Any] = {"prompt": prompt, "stream": bool(fields.get("stream"))}
        if count is None or count >= 0:  # -1: until the model ends the text
            body["max_tokens"] = count or self._n_predict
        given = {name: fields[name] for name in _NAMES if fields.get(name) is not None}
        return body | {_NAMES[name]: value for name, value in given.items()}


async def _events(answer: ChatAnswer) -> AsyncIterator[bytes]:
    async for delta in answer:
        if delta.finish_reason is None:
            yield _event({"content": _text_of(delta), "stop": False})
        else:
            yield _event(_end(answer, delta, _text_of(delta)))


def _text_of(delta: Delta) -> str:
    return "".join([part.text for part in delta.parts if isinstance(part, Text)])


def _end(answer: ChatAnswer, last: Delta, text: str) -> dict[str, Any]:
    kind = "eos" if last.stop is None else "word"
    return {
        "content": text,
        "stop": True,
        "stop_type": "limit" if last.finish_reason == "length" else kind,
        "stopping_word": last.stop or "",
        "tokens_predicted": answer.usage.completion_tokens,
        "tokens_evaluated": answer.usage.prompt_tokens,
        "model": answer.model,
    }


def _error(refusal: Refusal) -> dict[str, Any]:
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
    kind = _TYPES.get(refusal.status, kind)
    return {"error": {"code": refusal.status, "message": refusal.message, "type": kind}}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
