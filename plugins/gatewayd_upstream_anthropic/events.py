"""Events of a streamed message, by their types, and their conversion to deltas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gatewayd_hooks.parsing import Arguments, Part, Reasoning, Text, ToolCall
from gatewayd_hooks.upstreams import Delta, UpstreamCounts, UpstreamOutput, UpstreamRefusal

_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "overloaded_error": 503,
}


class EventUsage(msgspec.Struct):
    """Token counts; those of a prompt are in three parts."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class EventMessage(msgspec.Struct):
    """Beginning of a message."""

    usage: EventUsage | None = None


class EventBlock(msgspec.Struct):
    """Beginning of a content block."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None


class EventDelta(msgspec.Struct):
    """Piece of a block, or the end of a message."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


class EventError(msgspec.Struct):
    """Error."""

    type: str = ""
    message: str = ""


class StreamEvent(msgspec.Struct):
    """Any event."""

    type: str
    index: int = 0
    message: EventMessage | None = None
    content_block: EventBlock | None = None
    delta: EventDelta | None = None
    usage: EventUsage | None = None
    error: EventError | None = None


class AnthropicErrorBody(msgspec.Struct):
    """Body of an error response."""

    error: EventError


_decode = msgspec.json.Decoder(StreamEvent).decode
_decode_error = msgspec.json.Decoder(AnthropicErrorBody).decode


def refusal_of(status: int, body: bytes) -> UpstreamRefusal:
    """Return the error of a response."""
    try:
        return UpstreamRefusal(status, _decode_error(body).error.message)
    except (msgspec.DecodeError, RecursionError):
        return UpstreamRefusal(status)


class MessageReader:
    """Reads the events of one message.

    Attributes:
        is_over: whether it has ended.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._usage: dict[str, int] = {}
        self._calls: dict[int, int] = {}
        self._without_arguments: set[int] = set()

    def read(self, data: bytes) -> Iterator[UpstreamOutput]:
        """Convert an event.

        Raises:
            ValueError: it is not of the API.
            UpstreamRefusal: it is an error.
        """
        try:
            event = _decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"an event is not of the API: {error}") from None
        match event.type:
            case "error":
                found = event.error or EventError()
                raise UpstreamRefusal(_STATUSES.get(found.type, 500), found.message)
            case "message_start" if event.message is not None:
                yield from self._count(event.message.usage)
            case "content_block_start":
                parts = list(self._start(event.index, event.content_block or EventBlock()))
                if parts:
                    yield Delta(0, parts)
            case "content_block_delta":
                parts = list(self._piece(event.index, event.delta or EventDelta()))
                if parts:
                    yield Delta(0, parts)
            case "content_block_stop" if event.index in self._without_arguments:
                self._without_arguments.discard(event.index)
                yield Delta(0, [Arguments(self._calls[event.index], "{}")])
            case "message_delta":
                yield from self._end(event.delta or EventDelta())
                yield from self._count(event.usage)
            case "message_stop":
                self.is_over = True

    def _start(self, index: int, block: EventBlock) -> Iterator[Part]:
        if block.type == "tool_use":
            if not block.name:
                raise ValueError("a tool call has no name")
            self._calls[index] = len(self._calls)
            self._without_arguments.add(index)
            yield ToolCall(self._calls[index], block.name, block.id or "")
        elif block.type == "text" and block.text:
            yield Text(block.text)
        elif block.type == "thinking" and block.thinking:
            yield Reasoning(block.thinking)

    def _piece(self, index: int, delta: EventDelta) -> Iterator[Part]:
        if delta.type == "text_delta" and delta.text:
            yield Text(delta.text)
        elif delta.type == "thinking_delta" and delta.thinking:
            yield Reasoning(delta.thinking)
        elif delta.type == "input_json_delta" and delta.partial_json:
            if index not in self._calls:
                raise ValueError("arguments of a block that is no tool call")
            self._without_arguments.discard(index)
            yield Arguments(self._calls[index], delta.partial_json)

    def _end(self, delta: EventDelta) -> Iterator[Delta]:
        if delta.stop_reason is not None:
            reason = _REASONS.get(delta.stop_reason, "stop")
            yield Delta(0, (), reason, delta.stop_sequence)

    def _count(self, usage: EventUsage | None) -> Iterator[UpstreamCounts]:
        """Report counts; those that an event omits stay."""
        if usage is None:
            return
        given: dict[str, Any] = msgspec.structs.asdict(usage)
        self._usage |= {name: value for name, value in given.items() if value is not None}
        found = self._usage
        cached = found.get("cache_read_input_tokens", 0)
        created = found.get("cache_creation_input_tokens", 0)
        prompt = found.get("input_tokens", 0) + created + cached
        yield UpstreamCounts(prompt, found.get("output_tokens", 0), cached)
