"""The events of a streamed message, from its parts in any pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gatewayd_hooks.parsing import Arguments, Part, Reasoning, Text, ToolCall
from gatewayd_hooks.protocols import ChatAnswer, Delta, Usage

_encode = msgspec.json.Encoder().encode

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
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
    """One event."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **fields}))


def message_id(answer: ChatAnswer) -> str:
    """As Anthropic's look."""
    return f"msg_{_own(answer)}"


def call_id(answer: ChatAnswer, call: int) -> str:
    """Of a call of a tool: no other answer has it."""
    return f"toolu_{_own(answer)}{call:02d}"


def _own(answer: ChatAnswer) -> str:
    """What no other answer has; behind its prefix an answer's id may have hyphens of its own."""
    return answer.id.partition("-")[2].replace("-", "_")


def usage_of(usage: Usage) -> dict[str, int]:
    """Anthropic counts what was cached apart."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def stop_of(delta: Delta, *, is_context_full: bool) -> tuple[str, str | None]:
    """Why the message ended, and the stop sequence that ended it.

    Args:
        delta: the last one.
        is_context_full: whether the end of the context came before ``max_tokens``.
    """
    if delta.finish_reason == "tool_calls":
        return "tool_use", None
    if delta.finish_reason == "length":
        return "model_context_window_exceeded" if is_context_full else "max_tokens", None
    return ("end_turn", None) if delta.stop is None else ("stop_sequence", delta.stop)


class Events:
    """Writes one message.

    Args:
        answer: the message.
        thinks: whether what was thought is shown.
    """

    def __init__(self, answer: ChatAnswer, *, thinks: bool) -> None:
        self._answer = answer
        self._thinks = thinks
        self._index = -1
        self._open: object = None
        """What the open block holds: a type of part, or the number of a call."""

    def opening(self) -> bytes:
        """Before anything has come, but what is known of the prompt."""
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

    def take(self, parts: Sequence[Part]) -> bytes:
        """Events for what has come next."""
        found = b""
        for part in parts:
            if isinstance(part, Text):
                if self._open is not Text:
                    found += self._begin(Text, {"type": "text", "text": ""})
                found += _TEXT % (self._index, _encode(part.text))
            elif isinstance(part, Arguments):
                found += _ARGUMENTS % (self._index, _encode(part.text))
            elif isinstance(part, ToolCall):
                call = call_id(self._answer, part.call)
                block = {"type": "tool_use", "id": call, "name": part.name, "input": {}}
                found += self._begin(part.call, block)
            elif self._thinks:
                if self._open is not Reasoning:
                    block = {"type": "thinking", "thinking": "", "signature": ""}
                    found += self._begin(Reasoning, block)
                found += _THOUGHT % (self._index, _encode(part.text))
        return found

    def closing(self, last: Delta, *, is_context_full: bool) -> bytes:
        """The end of the message."""
        reason, stop = stop_of(last, is_context_full=is_context_full)
        return b"".join(
            (
                self._end(),
                event(
                    "message_delta",
                    delta={"stop_reason": reason, "stop_sequence": stop},
                    usage=usage_of(self._answer.usage),
                ),
                event("message_stop"),
            )
        )

    def _begin(self, what: object, block: dict[str, Any]) -> bytes:
        found = self._end()
        self._open = what
        self._index += 1
        found += event("content_block_start", index=self._index, content_block=block)
        return found if self._index else found + PING

    def _end(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return event("content_block_stop", index=self._index)
