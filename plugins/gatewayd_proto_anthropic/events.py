"""Server-sent events of a streamed message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gatewayd_hooks.parsing import Arguments, Part, Reasoning, Text, ToolCall
from gatewayd_hooks.protocols import ChatAnswer, Delta, Usage

_encode = msgspec.json.Encoder().encode

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
# Frequent events are formatted from templates, around the encoded text alone.
_TEXT = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":%b}}\n\n'
)
_THOUGHT = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":%d,'
    b'"delta":{"type":"thinking_delta","thinking":%b}}\n\n'
)
_ARGUMENTS = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":%d,'
    b'"delta":{"type":"input_json_delta","partial_json":%b}}\n\n'
)


def event(kind: str, **fields: Any) -> bytes:  # noqa: ANN401 - JSON
    """Encode one event."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **fields}))


def message_id(answer: ChatAnswer) -> str:
    """Return a message id in Anthropic's format."""
    return f"msg_{_own(answer)}"


def call_id(answer: ChatAnswer, call: int) -> str:
    """Return the id of a tool call, unique across answers."""
    return f"toolu_{_own(answer)}{call:02d}"


def _own(answer: ChatAnswer) -> str:
    """Return the unique part of an answer's id, which may contain hyphens itself."""
    return answer.id.partition("-")[2].replace("-", "_")


def usage_of(usage: Usage) -> dict[str, int]:
    """Return token usage; Anthropic counts cached tokens separately."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def stop_of(delta: Delta, *, is_context_full: bool) -> tuple[str, str | None]:
    """Return the stop reason, and the stop sequence that ended the message.

    Args:
        delta: the last one.
        is_context_full: whether the context ended before ``max_tokens``.
    """
    if delta.finish_reason == "tool_calls":
        return "tool_use", None
    if delta.finish_reason == "length":
        return "model_context_window_exceeded" if is_context_full else "max_tokens", None
    return ("end_turn", None) if delta.stop is None else ("stop_sequence", delta.stop)


class Events:
    """Encodes one message.

    Args:
        answer: the message.
        thinks: whether reasoning is included.
    """

    def __init__(self, answer: ChatAnswer, *, thinks: bool) -> None:
        self._answer = answer
        self._thinks = thinks
        self._index = -1
        self._open: object = None
        """Content of the open block: a type of part, or the index of a call."""

    def opening(self) -> bytes:
        """Return the event before any content, with the prompt's usage."""
        message: dict[str, Any] = {
            "id": message_id(self._answer),
            "type": "message",
            "role": "assistant",
            "model": self._answer.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_of(self._answer.usage._replace(completion_tokens=0)),
        }
        return event("message_start", message=message)

    def encode_parts(self, parts: Sequence[Part]) -> bytes:
        """Return events for new parts."""
        found = b""
        for part in parts:
            if isinstance(part, Text):
                if self._open is not Text:
                    found += self._open_block(Text, {"type": "text", "text": ""})
                found += _TEXT % (self._index, _encode(part.text))
            elif isinstance(part, Arguments):
                found += _ARGUMENTS % (self._index, _encode(part.text))
            elif isinstance(part, ToolCall):
                call = call_id(self._answer, part.call)
                block = {"type": "tool_use", "id": call, "name": part.name, "input": {}}
                found += self._open_block(part.call, block)
            elif self._thinks:
                if self._open is not Reasoning:
                    block = {"type": "thinking", "thinking": "", "signature": ""}
                    found += self._open_block(Reasoning, block)
                found += _THOUGHT % (self._index, _encode(part.text))
        return found

    def closing(self, last: Delta, *, is_context_full: bool) -> bytes:
        """Return the final events of the message."""
        reason, stop = stop_of(last, is_context_full=is_context_full)
        return b"".join(
            (
                self._close_block(),
                event(
                    "message_delta",
                    delta={"stop_reason": reason, "stop_sequence": stop},
                    usage=usage_of(self._answer.usage),
                ),
                event("message_stop"),
            )
        )

    def _open_block(self, what: object, block: dict[str, Any]) -> bytes:
        found = self._close_block()
        self._open = what
        self._index += 1
        found += event("content_block_start", index=self._index, content_block=block)
        # Anthropic's streams have a ping after the first block begins.
        return found if self._index else found + PING

    def _close_block(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return event("content_block_stop", index=self._index)
