"""Incremental parser of tool calls written as JSON objects, for parsers of any family.

Results depend on the text and never on how it was split, so that streams and whole answers agree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from gatewayd_hooks.parsing import Arguments, Part, ToolCall

_SPACE = re.compile(r"[ \t\r\n]*")
_IN_STRING = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["{}\[\]]')
_SCALAR = re.compile(r"[-+.\w]+")

ARGUMENTS = ("arguments", "parameters")
"""Names of a call's arguments in different families."""


class JsonSpan:
    """Finds the end of a JSON object, list or string.

    Attributes:
        is_done: whether it was found.
    """

    def __init__(self) -> None:
        self.is_done = False
        self._depth = 0
        self._is_string = self._is_escaped = False

    def feed(self, text: str, start: int = 0) -> int:
        """Scan more text.

        Args:
            text: contains the next characters.
            start: offset of the next character.

        Returns:
            Offset in ``text`` of the end; the length of ``text`` if it does not end there.
        """
        at = start
        while at < len(text):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            found = (_IN_STRING if self._is_string else _OUTSIDE).search(text, at)
            if found is None:
                return len(text)
            at, sign = found.end(), found[0]
            if sign == "\\":
                self._is_escaped = True
                continue
            if sign == '"':
                self._is_string = not self._is_string
            else:
                self._depth += 1 if sign in "{[" else -1
            if not self._is_string and self._depth <= 0:
                self.is_done = True
                return at
        return at


class CallObject:
    """Parses one object with a name and arguments; emits parts as soon as they are certain.

    Arguments are emitted as they were written. They may be an object, null, or an object that is
    encoded as a string; a call with no arguments, or with an empty string, has none.

    Attributes:
        is_done: whether the object has ended.
        is_broken: whether it is not a call; then no part was emitted.
        is_told: whether a part of the call was emitted.
        rest: text after the object, once it is done or broken.
        raw: text parsed while no part is emitted; all of a broken object.
    """

    def __init__(self, call: int, names: Collection[str] | None = None) -> None:
        """Start before the object's brace.

        Args:
            call: its index.
            names: allowed function names; None for any.
        """
        self.is_done = self.is_broken = self.is_told = False
        self.rest = self.raw = ""
        self._call = call
        self._names = names
        self._name: str | None = None
        self._arguments: str | None = None  # if they precede the name
        self._unread = ""
        self._key: str | None = None
        self._span: JsonSpan | None = None  # of the value at the start of ``_unread``
        self._num_seen = 0  # scanned characters of that value
        self._state = self._open

    def feed(self, text: str) -> list[Part]:
        """Parse more text, unless it is done or broken."""
        self._unread += text
        given = self.raw + text
        parts: list[Part] = []
        while not (self.is_done or self.is_broken) and self._state(parts):
            pass
        if self.is_broken and self.is_told:  # emitted parts stay valid; the object ends here
            self.is_broken, self.is_done = False, True
        if self.is_done or self.is_broken:
            self.rest, self._unread = self._unread, ""
        self.raw = "" if self.is_told else given[: len(given) - len(self.rest)]
        return parts

    # States: each returns whether it made progress.

    def _open(self, parts: list[Part]) -> bool:
        if self._skip_space() and self._expect("{"):
            self._state = self._first_key
            return True
        return False

    def _first_key(self, parts: list[Part]) -> bool:
        if not self._skip_space():
            return False
        if self._unread[0] == "}":
            return self._expect("}") and self._close(parts)
        self._state = self._next_key
        return True

    def _next_key(self, parts: list[Part]) -> bool:
        if not self._skip_space():
            return False
        key = self._string()
        if key is None:
            return False
        self._key, self._state = key, self._colon
        return True

    def _colon(self, parts: list[Part]) -> bool:
        if self._skip_space() and self._expect(":"):
            self._state = self._value
            return True
        return False

    def _value(self, parts: list[Part]) -> bool:
        if not self._skip_space():
            return False
        is_new = self._arguments is None and not self.is_told
        if self._key == "name" and self._name is None:
            return self._parse_name()
        if self._key in ARGUMENTS and is_new:
            # With the name known, arguments can be emitted while they are generated.
            if self._name is not None and self._unread[0] == "{":
                self._emit_call(parts)
                self._span, self._state = JsonSpan(), self._stream_arguments
                return True
            return self._parse_arguments()
        if self._whole() is None:
            return False
        self._state = self._after
        return True

    def _parse_name(self) -> bool:
        name = self._string()
        if name is None:
            return False
        if not name or (self._names is not None and name not in self._names):
            return self._break()
        self._name, self._state = name, self._after
        return True

    def _parse_arguments(self) -> bool:
        found = self._whole()
        if found is None:
            return False
        if found.startswith('"'):
            found = _decoded(found) or ("{}" if found == '""' else "")
            if not _is_object(found):
                return self._break()
        elif found == "null":
            found = "{}"
        if not found.startswith("{"):
            return self._break()
        self._arguments, self._state = found, self._after
        return True

    def _stream_arguments(self, parts: list[Part]) -> bool:
        span = self._span
        if span is None or not self._unread:
            return False
        end = span.feed(self._unread)
        parts.append(Arguments(self._call, self._unread[:end]))
        self._unread = self._unread[end:]
        if span.is_done:
            self._span, self._state = None, self._after
        return span.is_done

    def _after(self, parts: list[Part]) -> bool:
        if not self._skip_space():
            return False
        if self._unread[0] == ",":
            self._state = self._next_key
            return self._expect(",")
        return self._expect("}") and self._close(parts)

    # Steps of the states.

    def _close(self, parts: list[Part]) -> bool:
        if self._name is None:
            return self._break()
        if not self.is_told:
            self._emit_call(parts)
            parts.append(Arguments(self._call, self._arguments or "{}"))
        self.is_done = True
        return False

    def _emit_call(self, parts: list[Part]) -> None:
        parts.append(ToolCall(self._call, self._name or ""))
        self.is_told = True

    def _break(self) -> bool:
        self.is_broken = True
        return False

    def _skip_space(self) -> bool:
        """Skip whitespace; whether anything else follows."""
        self._unread = _SPACE.sub("", self._unread, count=1)
        return bool(self._unread)

    def _expect(self, sign: str) -> bool:
        if not self._unread.startswith(sign):
            return self._break()
        self._unread = self._unread[1:]
        return True

    def _string(self) -> str | None:
        """Return a complete string, decoded."""
        if self._unread[0] != '"':
            self._break()
            return None
        found = self._whole()
        if found is None:
            return None
        decoded = _decoded(found)
        if decoded is None:
            self._break()
        return decoded

    def _whole(self) -> str | None:
        """Return a complete value as it was written; None while it is incomplete."""
        if self._unread[0] in '{["':
            span = self._span = self._span or JsonSpan()
            # Scanning continues where it ended, so that a long value is scanned once.
            end = self._num_seen = span.feed(self._unread, self._num_seen)
            is_whole = span.is_done
        else:
            found = _SCALAR.match(self._unread)
            if found is None:
                self._break()
                return None
            end = found.end()
            # A number or a word ends only with the character after it.
            is_whole = end < len(self._unread)
        if not is_whole:
            return None
        self._span, self._num_seen = None, 0
        value, self._unread = self._unread[:end], self._unread[end:]
        return value


def _decoded(text: str) -> str | None:
    """Return a decoded JSON string; None if it is none, or cannot be encoded as UTF-8."""
    try:
        # Not strict, as models write line breaks in strings.
        value = json.loads(text, strict=False)
        if isinstance(value, str):
            value.encode()  # lone surrogates may be written, but are not valid text
            return value
    except ValueError:
        pass
    return None


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text, strict=False), dict)
    except (ValueError, RecursionError):
        return False
