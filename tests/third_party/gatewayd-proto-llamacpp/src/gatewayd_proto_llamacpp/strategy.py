"""``/generate``, ``/generate_stream`` and ``/info``, over the gateway's completions."""

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

from gatewayd_proto_tgi.config import TgiSettings

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources

_SAME = ("temperature", "top_k", "top_p", "repetition_penalty", "seed", "stop")
_KNOWN = {*_SAME, "max_new_tokens", "details", "do_sample"}
_TYPES = {429: "overloaded", 503: "overloaded", 400: "validation", 422: "validation"}


class TgiProtocol:
    """Continues a text; every piece of a stream is told as if it were one token."""

    def __init__(self, config: TgiSettings) -> None:
        self._max_new_tokens = config.max_new_tokens

    def open(self, resources: GatewayResources) -> None:
        """Nothing to take."""

    def close(self) -> None:
        """Nothing to give back."""

    def routes(self, gateway: Gateway) -> Sequence[Route]:
        """Two ways to generate, and what is said of the model."""

        async def generate(request: HttpRequest) -> HttpResponse:
            answer, ignored = await self._begin(gateway, request, is_stream=False)
            text, last = "", Delta(0, ())
            async for last in answer:
                text += _text_of(last)
            body = {"generated_text": text, "details": _details(answer, last)}
            return HttpResponse(json.dumps(body).encode(), ignored=ignored)

        async def stream(request: HttpRequest) -> HttpResponse:
            answer, ignored = await self._begin(gateway, request, is_stream=True)
            return HttpResponse(
                _events(answer),
                content_type="text/event-stream",
                ignored=ignored,
                keepalive=b":\n\n",
            )

        async def info(request: HttpRequest) -> HttpResponse:
            model = gateway.model
            if model is None:
                raise Refusal(503, "the model is being loaded", code="engine_unavailable")
            body = {
                "model_id": gateway.models[0],
                "model_dtype": model.dtype,
                "max_total_tokens": model.context_length,
                "version": gateway.version,
            }
            return HttpResponse(json.dumps(body).encode())

        return [
            Route("POST", "/generate", generate, "Continue a text (TGI)"),
            Route("POST", "/generate_stream", stream, "Continue a text in a stream (TGI)"),
            Route("GET", "/info", info, "Describe the model (TGI)"),
        ]

    def error(self, refusal: Refusal, request_id: str) -> HttpResponse:
        """A sentence and a type."""
        return HttpResponse(json.dumps(_error(refusal)).encode(), status=refusal.status)

    def late_error(self, refusal: Refusal, request_id: str) -> bytes:
        """The same as an event."""
        return _event(_error(refusal))

    async def _begin(
        self, gateway: Gateway, request: HttpRequest, *, is_stream: bool
    ) -> tuple[ChatAnswer, list[str]]:
        fields = request.json()
        asked = fields.get("parameters") or {}
        if not isinstance(fields.get("inputs"), str):
            raise Refusal(422, "inputs must be a string", param="inputs")
        if not isinstance(asked, dict):
            raise Refusal(422, "parameters must be an object", param="parameters")
        body: dict[str, Any] = {
            "model": gateway.models[0],
            "prompt": fields["inputs"],
            "stream": is_stream,
            "max_tokens": asked.get("max_new_tokens") or self._max_new_tokens,
        }
        body |= {name: asked[name] for name in _SAME if asked.get(name) is not None}
        if not asked.get("do_sample") and "temperature" not in body:
            body["temperature"] = 0
        ignored = [f"parameters.{name}" for name in asked if name not in _KNOWN]
        return await gateway.generate(body, request), ignored


async def _events(answer: ChatAnswer) -> AsyncIterator[bytes]:
    text, index = "", 0
    async for delta in answer:
        piece = _text_of(delta)
        text, index = text + piece, index + 1
        event: dict[str, Any] = {
            "index": index,
            "token": {"id": 0, "text": piece, "logprob": None, "special": False},
            "generated_text": None,
            "details": None,
        }
        if delta.finish_reason is not None:
            event |= {"generated_text": text, "details": _details(answer, delta)}
        yield _event(event)


def _text_of(delta: Delta) -> str:
    return "".join([part.text for part in delta.parts if isinstance(part, Text)])


def _details(answer: ChatAnswer, last: Delta) -> dict[str, Any]:
    reason = "stop_sequence" if last.stop is not None else "eos_token"
    return {
        "finish_reason": "length" if last.finish_reason == "length" else reason,
        "generated_tokens": answer.usage.completion_tokens,
        "seed": None,
    }


def _error(refusal: Refusal) -> dict[str, str]:
    kind = _TYPES.get(refusal.status, "generation")
    return {"error": refusal.message, "error_type": kind}


def _event(value: dict[str, Any]) -> bytes:
    return b"data:" + json.dumps(value).encode() + b"\n\n"
