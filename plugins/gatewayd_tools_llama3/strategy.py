"""Parses ``{"name": ..., "parameters": {...}}``, several separated by ``;`` or space.

Calls begin an answer, or follow ``<|python_tag|>``. A JSON answer that does not call an offered
tool is text.
"""

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
    from gatewayd_tools_llama3.config import Llama3Config

TAG = "<|python_tag|>"
_FORMAT = '{"name": function name, "parameters":'  # as templates ask for it
_SEPARATOR = ";"


class Llama3:
    """Format of Llama 3.1, 3.2 and 3.3."""

    marks = (TAG,)

    def __init__(self, config: Llama3Config) -> None:
        self._config = config

    def open(self, resources: GatewayResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def suits(self, chat_template: str) -> bool:
        """Whether a template explains the format to the model."""
        return TAG in chat_template or _FORMAT in chat_template

    def parser(self, tools: Sequence[Tool]) -> OutputParser:
        """Return a parser that identifies calls by the tools' names, as there are no delimiters."""
        return Llama3Parser({tool.name for tool in tools})

    def call_id(self, unique: str) -> str:
        """Return the id unchanged: templates show none."""
        return unique

    def guide(self, tools: Sequence[Tool], *, required: bool, parallel: bool) -> GuideSpec:
        """Constrain calls to the format that the template asks for."""
        structures = [
            {
                "begin": f'{{"name": {json.dumps(tool.name)}, "parameters": ',
                "schema": tool.parameters or {"type": "object"},
                "end": "}",
            }
            for tool in tools
        ]
        spec = {
            "triggers": ['{"name": "'],
            "structures": structures,
            "at_least_one": required,
            "stop_after_first": not parallel,
        }
        if required:
            spec["separator"] = "; "
        return GuideSpec("structural_tag", json.dumps(spec))


class Llama3Parser:
    """State of one answer: its beginning, calls, and text."""

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self._finder = MarkFinder([TAG])
        self._object: CallObject | None = None
        self._start: str | None = ""
        """Text where a call may begin, while it is ambiguous."""
        self._before = ""
        """Delimiter or separator before it, which is text if no call follows."""
        self._num_calls = 0

    def feed(self, text: str) -> Sequence[Part]:
        """Parse text, from state to state."""
        parts: list[Part] = []
        while text:
            if self._object is not None:
                text = self._read_object(self._object, text, parts)
            elif self._start is not None:
                text = self._read_start(self._start + text, parts)
            else:
                found = self._finder.feed(text)
                if found.text:
                    parts.append(Text(found.text))
                if found.mark:
                    self._start, self._before = "", TAG
                text = found.rest
        return parts

    def _read_start(self, text: str, parts: list[Part]) -> str:
        """Look for a brace, a delimiter before it, or after a call for a separator."""
        bare = text.lstrip()
        is_behind_call = self._num_calls > 0 and not self._before
        # More text decides between a call, a delimiter and plain text.
        if not bare or (not self._before and bare != TAG and TAG.startswith(bare)):
            self._start = text
            return ""
        # A second delimiter, or one after a separator, is text.
        if bare.startswith(TAG) and not self._before:
            self._start, self._before = "", TAG
            return bare[len(TAG) :]
        if is_behind_call and bare.startswith(_SEPARATOR):
            self._start, self._before = "", _SEPARATOR
            return bare[len(_SEPARATOR) :]
        self._start = None
        if bare.startswith("{"):
            self._object = CallObject(self._num_calls, self._names)
            if not is_behind_call:
                # This whitespace is text as well, if the object turns out not to be a call.
                self._before += text[: len(text) - len(bare)]
            return bare
        self._end_calls(parts, self._before)
        # Whitespace after a call is dropped with its delimiter; before text it is text.
        return bare if self._num_calls and not self._before else text

    def _read_object(self, call: CallObject, text: str, parts: list[Part]) -> str:
        parts += call.feed(text)
        if call.is_broken:
            self._object = None
            self._end_calls(parts, self._before + call.raw)
            return call.rest
        if call.is_done:
            self._num_calls += 1
            self._object, self._start, self._before = None, "", ""
            return call.rest
        return ""

    def _end_calls(self, parts: list[Part], told: str) -> None:
        """Continue with text, a part of which was read already."""
        self._finder = MarkFinder([TAG])
        if told:
            parts.append(Text(told))

    def finish(self) -> Sequence[Part]:
        """Return the rest: an incomplete call is text."""
        if self._object is not None:
            text = "" if self._object.is_told else self._before + self._object.raw
        elif self._start is not None:
            is_behind_call = self._num_calls > 0 and not self._before
            text = self._before + (self._start.lstrip() if is_behind_call else self._start)
        else:
            text = self._finder.finish()
        return [Text(text)] if text else []
