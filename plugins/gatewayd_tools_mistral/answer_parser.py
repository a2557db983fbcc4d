"""Parser of one answer of a Mistral model, for both formats of calls."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gatewayd_hooks.helpers.calling import CallObject, JsonSpan
from gatewayd_hooks.helpers.marks import MarkFinder
from gatewayd_hooks.parsing import Arguments, Part, Text, ToolCall

BEGIN, ARGS, ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_HEAD = re.compile(r"([\w.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)", re.ASCII)
_MOST_HEAD = 256
"""Maximum number of characters between delimiter and brace; a longer head is text."""


class MistralParser:
    """State machine over text, the beginning of calls, a list of objects, and arguments."""

    def __init__(self) -> None:
        self._finder = MarkFinder([BEGIN])
        self._state = self._text
        self._raw = ""
        """Text since the delimiter, while no call was emitted."""
        self._object: CallObject | None = None
        self._span = JsonSpan()
        self._num_calls = 0

    def feed(self, text: str) -> Sequence[Part]:
        """Parse text, from state to state."""
        parts: list[Part] = []
        while text:
            text = self._state(text, parts)
        return parts

    def _text(self, text: str, parts: list[Part]) -> str:
        found = self._finder.feed(text)
        if found.text:
            parts.append(Text(found.text))
        if found.mark:
            self._raw, self._state = "", self._head
        return found.rest

    def _head(self, text: str, parts: list[Part]) -> str:
        """Parse what follows the delimiter: a list, or a name."""
        self._raw += text
        bare = self._raw.lstrip()
        if bare.startswith("["):
            # Up to the bracket: should the list be no calls, this is emitted as text again.
            self._raw = self._raw[: len(self._raw) - len(bare) + 1]
            return self._begin_object(bare[1:])
        found = _HEAD.match(bare)
        if found is not None and found.end() <= _MOST_HEAD:
            parts.append(ToolCall(self._num_calls, found[1]))
            self._num_calls += 1
            self._span, self._state = JsonSpan(), self._arguments
            return bare[found.end() :]
        if (
            "{" in bare or len(bare) > _MOST_HEAD
        ):  # it may contain another delimiter: parse it again
            return self._emit_as_text(parts, BEGIN, self._raw)
        return ""

    def _arguments(self, text: str, parts: list[Part]) -> str:
        end = self._span.feed(text)
        parts.append(Arguments(self._num_calls - 1, text[:end]))
        if self._span.is_done:
            self._finder, self._state = MarkFinder([BEGIN], is_behind=True), self._text
        return text[end:]

    def _begin_object(self, text: str) -> str:
        self._object, self._state = CallObject(self._num_calls), self._list
        return text

    def _list(self, text: str, parts: list[Part]) -> str:
        call = self._object
        if call is None:
            return self._between(text, parts)
        parts += call.feed(text)
        if call.is_broken:
            return self._emit_as_text(
                parts, (BEGIN + self._raw if self._raw else "") + call.raw, call.rest
            )
        if call.is_done:
            self._num_calls += 1
            self._object, self._raw = None, ""
            return call.rest
        return ""

    def _between(self, text: str, parts: list[Part]) -> str:
        """Parse what follows an object of a list: another, or the list's end."""
        text = text.lstrip()
        if text.startswith(","):
            return self._begin_object(text[1:])
        # Anything else ends the list, even if its bracket is missing.
        if text:
            self._finder, self._state = MarkFinder([BEGIN], is_behind=True), self._text
        return text.removeprefix("]")

    def _emit_as_text(self, parts: list[Part], text: str, rest: str) -> str:
        if text:
            parts.append(Text(text))
        self._object = None
        self._finder, self._state = MarkFinder([BEGIN]), self._text
        return rest

    def finish(self) -> Sequence[Part]:
        """Return the rest: an incomplete call is text."""
        call = self._object
        if self._state == self._head:
            text = BEGIN + self._raw
        elif call is not None and not call.is_told:
            text = (BEGIN + self._raw if self._raw else "") + call.raw
        else:
            text = self._finder.finish()
        self._object = None
        return [Text(text)] if text else []
