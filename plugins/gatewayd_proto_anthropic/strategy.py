"""Routes ``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from gatewayd_hooks.parsing import Part
from gatewayd_hooks.protocols import (
    ChatAnswer,
    Delta,
    Gateway,
    HttpRequest,
    HttpResponse,
    RequestRefusal,
    Route,
)
from gatewayd_proto_anthropic.blocks import blocks_of
from gatewayd_proto_anthropic.error_fields import RENAMED
from gatewayd_proto_anthropic.events import PING, Events, event, message_id, stop_of, usage_of
from gatewayd_proto_anthropic.requests import AnthropicRequest, convert_request
from gatewayd_proto_anthropic.tables import CountRequest, MessagesRequest

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class Anthropic:
    """Messages API on top of chat completions."""

    def open(self, resources: GatewayResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def routes(self, gateway: Gateway) -> Sequence[Route]:
        """Return the two routes of the API that need no account."""

        async def create(request: HttpRequest) -> HttpResponse:
            converted = await gateway.read(request, convert_request)
            answer, is_cut = await _start(gateway, converted, request)
            headers = {"request-id": request.request_id}
            names = {**RENAMED, "service_tier": converted.tier_field}
            if converted.body.get("stream"):
                return HttpResponse(
                    _stream(answer, converted, is_cut=is_cut),
                    content_type="text/event-stream; charset=utf-8",
                    headers={**headers, "cache-control": "no-cache"},
                    ignored=converted.ignored,
                    names=names,
                    keepalive=PING,
                )
            body = await _whole(answer, converted, is_cut=is_cut)
            return HttpResponse(
                msgspec.json.encode(body), headers=headers, ignored=converted.ignored, names=names
            )

        async def count(request: HttpRequest) -> HttpResponse:
            converted = await gateway.read(request, partial(convert_request, counts=True))
            with converted.error_fields.translated():
                tokens = await gateway.count_tokens(converted.body)
            return HttpResponse(
                b'{"input_tokens":%d}' % tokens,
                headers={"request-id": request.request_id},
                ignored=converted.ignored,
            )

        return [
            Route(
                *("POST", "/v1/messages", create, "Answer a conversation (Anthropic)"),
                request=MessagesRequest,
            ),
            Route(
                *("POST", "/v1/messages/count_tokens", count, "Count its tokens (Anthropic)"),
                request=CountRequest,
            ),
        ]

    def error(self, refusal: RequestRefusal, request_id: str) -> HttpResponse:
        """Return Anthropic's error object."""
        return HttpResponse(
            msgspec.json.encode({"type": "error", **_error(refusal, request_id)}),
            status=refusal.status,
            headers={"request-id": request_id},
        )

    def late_error(self, refusal: RequestRefusal, request_id: str) -> bytes:
        """Return an error event."""
        return event("error", **_error(refusal, request_id))


async def _start(
    gateway: Gateway, converted: AnthropicRequest, request: HttpRequest
) -> tuple[ChatAnswer, bool]:
    """Start the chat completion.

    Clients set ``max_tokens`` beyond the context as a bound: then the end of the context is the
    bound.

    Returns:
        The answer, and whether the context ends before ``max_tokens``.
    """
    try:
        with converted.error_fields.translated():
            return await gateway.chat(converted.body, request), False
    except RequestRefusal as refusal:
        if (refusal.code, refusal.param) != ("context_length_exceeded", "max_tokens"):
            raise
    body = {name: value for name, value in converted.body.items() if name != "max_tokens"}
    with converted.error_fields.translated():
        return await gateway.chat(body, request), True


async def _stream(
    answer: ChatAnswer, converted: AnthropicRequest, *, is_cut: bool
) -> AsyncIterator[bytes]:
    """Yield one piece for all output since the last one."""
    events = Events(answer, thinks=converted.thinks)
    before = None
    try:
        with converted.error_fields.translated():
            async for delta in answer:
                found = events.encode_parts(delta.parts)
                # With the first output, as an error before the first event still determines the
                # status.
                if before is None:
                    found = before = events.opening() + found
                if delta.finish_reason is not None:
                    found += events.closing(delta, is_context_full=is_cut)
                if found:
                    yield found
    finally:
        # Also when the client disconnects, which ends the generation.
        answer.close()


async def _whole(
    answer: ChatAnswer, converted: AnthropicRequest, *, is_cut: bool
) -> dict[str, Any]:
    parts: list[Part] = []
    last = Delta(0, ())
    with converted.error_fields.translated():
        async for last in answer:
            parts += last.parts
    reason, stop = stop_of(last, is_context_full=is_cut)
    return {
        "id": message_id(answer),
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": blocks_of(answer, parts, thinks=converted.thinks),
        "stop_reason": reason,
        "stop_sequence": stop,
        "usage": usage_of(answer.usage),
    }


def _error(refusal: RequestRefusal, request_id: str) -> dict[str, Any]:
    kind = _TYPES.get(refusal.status)
    if kind is None:
        kind = "api_error" if refusal.status >= 500 else "invalid_request_error"
    message = refusal.message
    if refusal.code == "context_length_exceeded":
        # Agents look for this phrase of Anthropic's, to shorten the conversation.
        message = f"prompt is too long: {message}"
    return {"error": {"type": kind, "message": message}, "request_id": request_id}
