"""Parses ``<think>...</think>`` before an answer, also if the prompt has opened it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.helpers.marks import MarkFinder
from gatewayd_hooks.parsing import Bounds, OutputParser, Part, Reasoning, Text

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources
    from gatewayd_reasoning_think.config import ThinkConfig

BEGIN, END = "<think>", "</think>"


class Think:
    """Reasoning format of DeepSeek R1, Qwen 3, QwQ and others."""

    marks = (BEGIN, END)

    def __init__(self, config: ThinkConfig) -> None:
        self._config = config

    def open(self, resources: GatewayResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def suits(self, chat_template: str) -> bool:
        """Whether a template opens the reasoning, or removes it from earlier answers."""
        return BEGIN in chat_template or END in chat_template

    def parser(self, prompt_end: str) -> OutputParser:
        """Return a parser that starts in the reasoning if the prompt ends with its delimiter."""
        return ThinkParser(is_open=prompt_end.rstrip().endswith(BEGIN))

    def bounds(self, prompt_end: str) -> Bounds | None:
        """Return the delimiters.

        None if the prompt has ended the reasoning, as templates do to disable it.
        """
        end = prompt_end.rstrip()
        if end.endswith(END):
            return None
        return Bounds("" if end.endswith(BEGIN) else BEGIN, END)


class ThinkParser:
    """State of one answer: its beginning, reasoning, and then text to the end."""

    def __init__(self, *, is_open: bool) -> None:
        self._start: str | None = None if is_open else ""
        """Text read while the opening delimiter may follow."""
        self._finder: MarkFinder | None = MarkFinder([END], is_behind=True) if is_open else None
        self._drops_space = False

    def feed(self, text: str) -> Sequence[Part]:
        """Parse text; only the first opening and the first closing delimiter count."""
        if self._start is not None:
            text = self._start + text
            bare = text.lstrip()
            if bare.startswith(BEGIN):
                self._start, self._finder = None, MarkFinder([END], is_behind=True)
                text = bare[len(BEGIN) :]
            elif BEGIN.startswith(bare):
                # Also true for whitespace alone, after which the delimiter may still come.
                self._start = text
                return []
            else:
                self._start = None
        return self._read(text)

    def _read(self, text: str) -> list[Part]:
        parts: list[Part] = []
        if self._finder is not None:
            found = self._finder.feed(text)
            if found.text:
                parts.append(Reasoning(found.text))
            if not found.mark:
                return parts
            self._finder, self._drops_space = None, True
            text = found.rest
        if self._drops_space:
            text = text.lstrip()
        if text:
            self._drops_space = False
            parts.append(Text(text))
        return parts

    def finish(self) -> Sequence[Part]:
        """Return the rest; unterminated reasoning is reasoning."""
        if self._finder is not None:
            held = self._finder.finish()
            return [Reasoning(held)] if held else []
        held, self._start = self._start or "", None
        return [Text(held)] if held else []
