"""What Ollama's clients read: lines of a stream, or one object."""

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
    """As Go writes it, to the nanosecond."""
    seconds, rest = divmod(time.time_ns(), _NANO)
    return f"{_second(seconds)}.{rest:09d}Z"


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def stamp(seconds: int) -> str:
    """A time that is known to the second."""
    return f"{_second(seconds)}Z"


@dataclass(slots=True)
class Said:
    """What has come in some deltas.

    Attributes:
        text: said to the user.
        thought: before.
        calls: that are complete, as objects.
    """

    text: str = ""
    thought: str = ""
    calls: list[Fields] = field(default_factory=list)


class Reader:
    """Reads parts in any pieces; a call is told when it is complete."""

    def __init__(self) -> None:
        self._call: ToolCall | None = None
        self._arguments: list[str] = []

    def take(self, parts: Sequence[Part], *, is_last: bool) -> Said:
        """What has come next.

        Args:
            parts: in order.
            is_last: whether nothing follows.
        """
        said = Said()
        for part in parts:
            if isinstance(part, Text):
                said.text += part.text
            elif isinstance(part, Arguments):
                self._arguments.append(part.text)
            elif isinstance(part, Reasoning):
                said.thought += part.text
            else:
                self._end(said)
                self._call = part
        if is_last:
            self._end(said)
        return said

    def _end(self, said: Said) -> None:
        if self._call is None:
            return
        text = "".join(self._arguments)
        try:
            arguments = msgspec.json.decode(text or "{}")
        except msgspec.DecodeError:
            arguments = None
        if isinstance(arguments, dict):
            function = {"index": self._call.call, "name": self._call.name, "arguments": arguments}
            said.calls.append({"function": function})
        else:  # cut short: no object that could be called with
            said.text += text
        self._call = None
        self._arguments = []


class Lines:
    """Writes one answer.

    Args:
        model: the name that was asked for.
        is_chat: whether messages are answered, or a prompt.
        thinks: whether what was thought is shown.
    """

    def __init__(self, model: str, *, is_chat: bool, thinks: bool) -> None:
        self._model = model
        self._is_chat = is_chat
        self._thinks = thinks
        self._head = b'{"model":%b,"created_at":"' % _encode(model)

    def line(self, said: Said, logprobs: Sequence[Fields] = ()) -> bytes:
        """What has come, of which more follows; empty for nothing."""
        if not (said.text or said.calls or logprobs or (said.thought and self._thinks)):
            return b""
        if self._is_chat and not (said.calls or logprobs or said.thought):
            # The common case, put together from bytes.
            return b"".join((self._head, now().encode(), _MIDDLE, _encode(said.text), _TAIL))
        return _encode(self.answer(said, logprobs) | {"done": False}) + b"\n"

    def answer(self, said: Said, logprobs: Sequence[Fields] = ()) -> Fields:
        """The same as an object."""
        thought = said.thought if self._thinks else ""
        found: Fields = {"model": self._model, "created_at": now()}
        if self._is_chat:
            message: Fields = {"role": "assistant", "content": said.text}
            if thought:
                message["thinking"] = thought
            if said.calls:
                message["tool_calls"] = said.calls
            found["message"] = message
        else:
            found["response"] = said.text
            if thought:
                found["thinking"] = thought
        if logprobs:
            found["logprobs"] = list(logprobs)
        return found

    def end(self, answer: ChatAnswer, last: Delta) -> Fields:
        """What the last object says beside."""
        timing, usage = answer.timing, answer.usage
        return {
            "done": True,
            "done_reason": "length" if last.finish_reason == "length" else "stop",
            "total_duration": round(timing.total * _NANO),
            "load_duration": round(timing.queue * _NANO),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": round(timing.prefill * _NANO),
            "eval_count": usage.completion_tokens,
            "eval_duration": round(timing.decode * _NANO),
        }

    def loaded(self) -> bytes:
        """Nothing was asked; the model is there."""
        end = {"done": True, "done_reason": "load"}
        return _encode(self.answer(Said()) | end) + b"\n"
