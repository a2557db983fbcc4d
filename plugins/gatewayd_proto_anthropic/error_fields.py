"""Maps fields of the chat completion body back to the client's request, for refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from gatewayd_hooks.protocols import RequestRefusal

RENAMED = {
    "stop": "stop_sequences",
    "user": "metadata.user_id",
    "reasoning_effort": "output_config.effort",
    "enable_thinking": "thinking",
    "response_format": "output_config.format",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "tool_choice.function": "tool_choice",
}
"""Fields that have another name in a chat completion."""
_PARTS = {
    "tool_call_id": "tool_use_id",
    "reasoning_content": "content",
    "tool_calls": "content",
    "id": "id",
    "function": "",
    "function.name": "name",
    "function.arguments": "input",
}
"""The same for fields of messages and of their tool calls."""
_MESSAGE = re.compile(r"messages\[(\d+)\](?:\.tool_calls\[(\d+)\])?(?:\.(.*))?", re.DOTALL)
_TOOL = re.compile(r"(tools\[\d+\])\.function(?:\.(parameters))?(.*)", re.DOTALL)
_FORM = re.compile(r"response_format(?:\.json_schema)?(.*)", re.DOTALL)


class AnthropicTurn(NamedTuple):
    """Location of a message in the request.

    Attributes:
        place: of the message: ``system``, ``messages[1]``, ``messages[1].content[0]``.
        calls: locations of its tool calls.
    """

    place: str
    calls: Sequence[str] = ()


class ErrorFields(NamedTuple):
    """Locations of one request.

    Attributes:
        turns: of the body's messages, in order.
        form: field that constrains the answer.
    """

    turns: Sequence[AnthropicTurn]
    form: str

    def of(self, param: str) -> str:
        """Return the client's field for a field of the body."""
        if found := _MESSAGE.fullmatch(param):
            at, call, rest = found.groups()
            if int(at) < len(self.turns):
                return _within(self.turns[int(at)], call, rest or "")
        if found := _TOOL.fullmatch(param):
            tool, schema, rest = found.groups()
            return f"{tool}{'.input_schema' if schema else ''}{rest}"
        if found := _FORM.fullmatch(param):
            return f"{self.form}{found[1]}"
        for theirs, ours in RENAMED.items():
            if param == theirs or param.startswith((f"{theirs}.", f"{theirs}[")):
                return ours + param[len(theirs) :]
        return param

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Translate the fields of refusals raised in the context.

        Raises:
            Refusal: there was one.
        """
        try:
            yield
        except RequestRefusal as refusal:
            if refusal.param is None or (place := self.of(refusal.param)) == refusal.param:
                raise
            raise refusal.at(place) from refusal


def _within(turn: AnthropicTurn, call: str | None, rest: str) -> str:
    place = turn.place
    if call is not None and int(call) < len(turn.calls):
        place = turn.calls[int(call)]
    elif place == "system":
        return place  # it has no content field
    part = _PARTS.get(rest, rest)
    return f"{place}.{part}" if part else place
