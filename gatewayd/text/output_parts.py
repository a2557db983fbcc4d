"""Parsing of model output into text, reasoning and tool calls, with fault isolation.

If a parser raises, the rest of that response is returned as unparsed text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from gatewayd_hooks.parsing import Arguments, OutputParser, Part, Reasoning, Text, ToolCall

_log = logging.getLogger(__name__)


class Parsers(NamedTuple):
    """Parsers for the responses of one request.

    Attributes:
        reasoning: creates the reasoning parser; None for a model without reasoning.
        tools: creates the tool-call parser for text outside reasoning; None without tools.
        most_calls: maximum of tool calls returned; None for all.
        keeps_reasoning: whether reasoning is returned.
        marks: special tokens visible to the parsers although they are omitted from text.
        armed: runs a function that calls the parsers under their watchdog; None for no watchdog.
    """

    reasoning: Callable[[], OutputParser] | None = None
    tools: Callable[[], OutputParser] | None = None
    most_calls: int | None = None
    keeps_reasoning: bool = True
    marks: frozenset[str] = frozenset()
    armed: Callable[[Callable[[], list[Part]]], list[Part]] | None = None

    def reader(self) -> OutputReader:
        """Create a reader for one response."""
        return OutputReader(self)


class OutputReader:
    """Incremental reader of one response.

    Attributes:
        num_calls: number of tool calls returned.
        reasoning_pieces: number of pieces up to the last one that ended in reasoning.
    """

    def __init__(self, parsers: Parsers) -> None:
        """Create the parsers for a new response."""
        self._parsers = parsers
        self._reasoning: OutputParser | None = None
        self._tools: OutputParser | None = None
        self._is_broken = self._is_finished = False
        self._num_pieces = 0
        self._unread: list[str] = []
        self.num_calls = 0
        self.reasoning_pieces = 0
        try:
            self._reasoning = parsers.reasoning() if parsers.reasoning else None
            self._tools = parsers.tools() if parsers.tools else None
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            self._disable(error)

    def read(self, pieces: Sequence[str], *, is_last: bool) -> list[Part]:
        """Parse the next pieces of the response.

        Args:
            pieces: in order, one per token where ``reasoning_pieces`` is to count tokens.
            is_last: whether the response ends with them; may be repeated.

        Returns:
            Parts in order, adjacent ones of the same kind merged.
        """
        armed = self._parsers.armed
        if armed is None:
            return self._read(pieces, is_last=is_last)
        return armed(lambda: self._read(pieces, is_last=is_last))

    def _read(self, pieces: Sequence[str], *, is_last: bool) -> list[Part]:
        parts: list[Part] = []
        # Token by token only for reasoning, whose tokens are counted.
        for piece in pieces if self._reasoning else ("".join(pieces),):
            self._num_pieces += 1
            if self._is_broken:
                parts += _text(piece)
            elif piece:
                self._unread.append(piece)
                parts += self._guarded(lambda piece=piece: self._feed(piece))  # type: ignore[misc]
        if is_last and not self._is_finished:
            self._is_finished = True
            if not self._is_broken:
                parts += self._guarded(self._finish)
        # Merged last, as text on both sides of omitted reasoning becomes one part.
        return _merged(self._filtered(parts))

    def _feed(self, text: str) -> list[Part]:
        if self._reasoning is None:
            return self._read_text(text)
        return self._parse_calls(self._reasoning.feed(text))

    def _finish(self) -> list[Part]:
        parts = [] if self._reasoning is None else self._parse_calls(self._reasoning.finish())
        return parts if self._tools is None else [*parts, *self._tools.finish()]

    def _parse_calls(self, parts: Sequence[Part]) -> list[Part]:
        """Parse tool calls in the text outside reasoning."""
        found: list[Part] = []
        for part in parts:
            found += self._read_text(part.text) if isinstance(part, Text) else [part]
        return found

    def _read_text(self, text: str) -> list[Part]:
        return list(self._tools.feed(text)) if self._tools else _text(text)

    def _guarded(self, work: Callable[[], list[Part]]) -> list[Part]:
        try:
            parts = work()
            if parts:
                self._unread = [_rest("".join(self._unread), parts)]
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            self._disable(error)
            # Text that the parser has read and withheld.
            return _text("".join(self._unread))
        if parts and isinstance(parts[-1], Reasoning):
            self.reasoning_pieces = self._num_pieces
        return parts

    def _disable(self, error: Exception) -> None:
        self._is_broken = True
        # The error's message may quote the response.
        _log.debug(
            "parser failed, returning the rest of an answer as text: %s", type(error).__name__
        )

    def _filtered(self, parts: Iterable[Part]) -> list[Part]:
        most, kept = self._parsers.most_calls, []
        for part in parts:
            if isinstance(part, ToolCall | Arguments):
                # Calls are numbered from 0.
                if most is not None and part.call >= most:
                    continue
                self.num_calls += isinstance(part, ToolCall)
            elif isinstance(part, Reasoning) and not self._parsers.keeps_reasoning:
                continue
            kept.append(part)
        return kept


def _rest(text: str, parts: Sequence[Part]) -> str:
    """Return the text after what parts were parsed from; empty if they do not quote it."""
    for part in parts:
        quoted = part.name if isinstance(part, ToolCall) else part.text
        at = text.find(quoted)
        text = text[at + len(quoted) :] if at >= 0 else ""
    return text


def _text(text: str) -> list[Part]:
    return [Text(text)] if text else []


def _merged(parts: Sequence[Part]) -> list[Part]:
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, Text) and isinstance(last, Text):
            joined[-1] = Text(last.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            joined[-1] = Reasoning(last.text + part.text)
        elif isinstance(part, Arguments) and isinstance(last, Arguments) and part[0] == last[0]:
            joined[-1] = Arguments(part.call, last.text + part.text)
        else:
            joined.append(part)
    return joined
