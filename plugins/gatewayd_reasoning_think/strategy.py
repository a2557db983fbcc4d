"""Reads ``<think>...</think>`` in front of an answer, also where the prompt has opened it."""

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
    """DeepSeek R1, Qwen 3, QwQ and others."""

    marks = (BEGIN, END)

    def __init__(self, config: ThinkConfig) -> None:
        self._config = config

    def open(self, resources: GatewayResources) -> None:
        """Nothing to take."""

    def close(self) -> None:
        """Nothing to give back."""

    def suits(self, chat_template: str) -> bool:
        """Templates open the reasoning, or take it out of earlier answers."""
        return BEGIN in chat_template or END in chat_template

    def parser(self, prompt_end: str) -> OutputParser:
        """Reason from the beginning where the prompt ends in the mark."""
        return ThinkParser(is_open=prompt_end.rstrip().endswith(BEGIN))

    def bounds(self, prompt_end: str) -> Bounds | None:
        """No reasoning where the prompt has ended it already, as templates do to switch it off."""
        end = prompt_end.rstrip()
        if end.endswith(END):
            return None
        return Bounds("" if end.endswith(BEGIN) else BEGIN, END)


class ThinkParser:
    """One answer: its beginning, reasoning, and then text to the end."""

    def __init__(self, *, is_open: bool) -> None:
        self._start: str | None = None if is_open else ""
        """What was read while the mark may follow."""
        self._finder: MarkFinder | None = MarkFinder([END], is_behind=True) if is_open else None
        self._drops_space = False

    def feed(self, text: str) -> Sequence[Part]:
        """Only the first mark opens, only the first end closes."""
        if self._start is not None:
            text = self._start + text
            bare = text.lstrip()
            if bare.startswith(BEGIN):
                self._start, self._finder = None, MarkFinder([END], is_behind=True)
                text = bare[len(BEGIN) :]
            elif BEGIN.startswith(bare):
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
        """Reasoning that did not end is reasoning."""
        if self._finder is not None:
            held = self._finder.finish()
            return [Reasoning(held)] if held else []
        held, self._start = self._start or "", None
        return [Text(held)] if held else []
