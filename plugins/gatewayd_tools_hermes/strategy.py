"""Parses ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, any number of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.guiding import GuideSpec
from gatewayd_hooks.helpers.calling import CallObject
from gatewayd_hooks.helpers.marks import MarkFinder
from gatewayd_hooks.parsing import OutputParser, Part, Text, Tool

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources
    from gatewayd_tools_hermes.config import HermesConfig

BEGIN, END = "<tool_call>", "</tool_call>"


class Hermes:
    """Format of Hermes 2 and 3, Qwen 2.5 and 3, and the embedded model."""

    marks = (BEGIN, END)

    def __init__(self, config: HermesConfig) -> None:
        self._config = config

    def open(self, resources: GatewayResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def suits(self, chat_template: str) -> bool:
        """Whether a template shows the model its own earlier calls in this format."""
        return BEGIN in chat_template

    def parser(self, tools: Sequence[Tool]) -> OutputParser:
        """Return a parser that accepts any name: delimiters identify calls."""
        return HermesParser()

    def call_id(self, unique: str) -> str:
        """Return the id unchanged: templates show none."""
        return unique

    def guide(self, tools: Sequence[Tool], *, required: bool, parallel: bool) -> GuideSpec:
        """Constrain calls to the format of the model's training, line breaks included."""
        structures = [
            {
                "begin": f'{BEGIN}\n{{"name": {json.dumps(tool.name)}, "arguments": ',
                "schema": tool.parameters or {"type": "object"},
                "end": f"}}\n{END}",
            }
            for tool in tools
        ]
        spec = {
            "triggers": [BEGIN],
            "structures": structures,
            "at_least_one": required,
            "stop_after_first": not parallel,
        }
        if required:
            spec["separator"] = "\n"
        return GuideSpec("structural_tag", json.dumps(spec))


class HermesParser:
    """State of one answer: text, the object of a call, or text before its end delimiter."""

    def __init__(self) -> None:
        self._finder = MarkFinder([BEGIN])
        self._object: CallObject | None = None
        self._behind: str | None = None
        """Text after an object while it may be the end delimiter."""
        self._num_calls = 0

    def feed(self, text: str) -> Sequence[Part]:
        """Parse text, from state to state."""
        parts: list[Part] = []
        while text:
            if self._object is not None:
                text = self._read_object(self._object, text, parts)
            elif self._behind is not None:
                text = self._read_end(self._behind + text)
            else:
                found = self._finder.feed(text)
                if found.text:
                    parts.append(Text(found.text))
                if found.mark:
                    self._object = CallObject(self._num_calls)
                text = found.rest
        return parts

    def _read_object(self, call: CallObject, text: str, parts: list[Part]) -> str:
        parts += call.feed(text)
        if call.is_broken:
            # The delimiter was part of the text.
            parts.append(Text(BEGIN + call.raw))
            self._object, self._finder = None, MarkFinder([BEGIN])
            return call.rest
        if call.is_done:
            self._num_calls += 1
            self._object, self._behind = None, ""
            return call.rest
        return ""

    def _read_end(self, text: str) -> str:
        """Skip the end delimiter; some models omit it."""
        text = text.lstrip()
        if text.startswith(END):
            text = text[len(END) :]
        elif END.startswith(text):
            self._behind = text
            return ""
        # No end delimiter follows, or it was read: the rest is text or another call.
        self._behind, self._finder = None, MarkFinder([BEGIN], is_behind=True)
        return text

    def finish(self) -> Sequence[Part]:
        """Return the rest: an incomplete call is text, a partial end delimiter is dropped."""
        if self._object is not None:
            text = "" if self._object.is_told else BEGIN + self._object.raw
            self._object = None
        else:
            text = self._finder.finish()
        return [Text(text)] if text else []
