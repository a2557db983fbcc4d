"""Responses in Ollama's format: lines of a stream, or one object."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from gatewayd_hooks.parsing import Arguments, Part, Reasoning, Text, ToolCall
from gatewayd_hooks.protocols import ChatAnswer, Delta

_encode = msgspec.json.Encoder().encode
_NANO = 1_000_000_000

Fields = dict[str, Any]

_MIDDLE = b'","message":{"role":"assistant","content":'
_TAIL = b'},"done":false}\n'


def now() -> str:
    """Return the time as Go formats it, with nanoseconds."""
    # Each line of a stream has a time: only the nanoseconds are formatted for each.
    seconds, rest = divmod(time.time_ns(), _NANO)
    return f"{_second(seconds)}.{rest:09d}Z"


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def stamp(seconds: int) -> str:
    """Return a time with a resolution of seconds."""
    return f"{_second(seconds)}Z"


@dataclass(slots=True)
class DeltaContent:
    """Content of some deltas.

    Attributes:
        text: for the user.
        thought: reasoning before it.
        calls: complete tool calls, as objects.
    """

    text: str = ""
    thought: str = ""
    calls: list[Fields] = field(default_factory=list)


class Reader:
    """Collects parts; a tool call is returned when it is complete."""

    def __init__(self) -> None:
        self._call: ToolCall | None = None
        self._arguments: list[str] = []

    def read(self, parts: Sequence[Part], *, is_last: bool) -> DeltaContent:
        """Return the content of the next parts.

        Args:
            parts: in order.
            is_last: whether nothing follows.
        """
        content = DeltaContent()
        for part in parts:
            if isinstance(part, Text):
                content.text += part.text
            elif isinstance(part, Arguments):
                self._arguments.append(part.text)
            elif isinstance(part, Reasoning):
                content.thought += part.text
            else:
                self._end(content)
                self._call = part
        if is_last:
            self._end(content)
        return content

    def _end(self, content: DeltaContent) -> None:
        if self._call is None:
            return
        text = "".join(self._arguments)
        try:
            arguments = msgspec.json.decode(text or "{}")
        except msgspec.DecodeError:
            arguments = None
        if isinstance(arguments, dict):
            function = {"index": self._call.call, "name": self._call.name, "arguments": arguments}
            content.calls.append({"function": function})
        else:  # truncated: not an object
            content.text += text
        self._call = None
        self._arguments = []


class Lines:
    """Encodes one answer.

    Args:
        model: the requested model name.
        is_chat: whether it answers messages, or a prompt.
        thinks: whether reasoning is included.
    """

    def __init__(self, model: str, *, is_chat: bool, thinks: bool) -> None:
        self._model = model
        self._is_chat = is_chat
        self._thinks = thinks
        self._head = b'{"model":%b,"created_at":"' % _encode(model)

    def line(self, content: DeltaContent, logprobs: Sequence[Fields] = ()) -> bytes:
        """Return a line with some content; empty if there is none."""
        if not (content.text or content.calls or logprobs or (content.thought and self._thinks)):
            return b""
        if self._is_chat and not (content.calls or logprobs or content.thought):
            # The common case, put together from bytes.
            return b"".join((self._head, now().encode(), _MIDDLE, _encode(content.text), _TAIL))
        return _encode(self.answer(content, logprobs) | {"done": False}) + b"\n"

    def answer(self, content: DeltaContent, logprobs: Sequence[Fields] = ()) -> Fields:
        """Return the same as an object."""
        thought = content.thought if self._thinks else ""
        found: Fields = {"model": self._model, "created_at": now()}
        if self._is_chat:
            message: Fields = {"role": "assistant", "content": content.text}
            if thought:
                message["thinking"] = thought
            if content.calls:
                message["tool_calls"] = content.calls
            found["message"] = message
        else:
            found["response"] = content.text
            if thought:
                found["thinking"] = thought
        if logprobs:
            found["logprobs"] = list(logprobs)
        return found

    def end(self, answer: ChatAnswer, last: Delta) -> Fields:
        """Return the additional fields of the last object."""
        timing, usage = answer.timing, answer.usage
        return {
            "done": True,
            "done_reason": "length" if last.finish_reason == "length" else "stop",
            "total_duration": round(timing.total * _NANO),
            # The model is loaded already; the time in the queue is what precedes the prefill here.
            "load_duration": round(timing.queue * _NANO),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": round(timing.prefill * _NANO),
            "eval_count": usage.completion_tokens,
            "eval_duration": round(timing.decode * _NANO),
        }

    def loaded(self) -> bytes:
        """Return the line for an empty request to a loaded model."""
        end = {"done": True, "done_reason": "load"}
        return _encode(self.answer(DeltaContent()) | end) + b"\n"
