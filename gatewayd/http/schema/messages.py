"""The turns of a conversation, as requests bring them and as chat templates know them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from gatewayd_hooks.requests.fields import (
    MAX_CALLS,
    MAX_MESSAGES,
    MAX_PARTS,
    CallId,
    CallName,
    few_entries,
)
from gatewayd_hooks.requests.tables import OrNull, RequestTable


class TextPart(RequestTable):
    """A part of a message: text, or words with which an assistant refused."""

    type: Literal["text", "refusal", "input_text", "output_text"]
    text: str | None = None
    refusal: Annotated[str | None, Field(description="Text of a part of type `refusal`.")] = None

    @property
    def words(self) -> str | None:
        """What is said in it; None where that is missing."""
        return self.refusal if self.type == "refusal" else self.text


class CalledFunction(RequestTable):
    """What was called, and with what."""

    name: CallName
    arguments: Annotated[str, Field(description="Arguments as JSON, as the model returned them.")]

    def for_template(self) -> dict[str, Any]:
        """As chat templates know it: they write the arguments themselves."""
        return {"name": self.name, "arguments": _parsed(self.arguments)}


class MessageToolCall(RequestTable):
    """A call that an earlier answer made."""

    id: CallId
    type: Annotated[Literal["function"], OrNull()] = "function"
    function: CalledFunction


class MessageFault(NamedTuple):
    """What is wrong with a message.

    Attributes:
        field: its place in the message.
        what: continues a sentence that begins with the field.
        is_missing: whether it is not there.
    """

    field: str
    what: str
    is_missing: bool = False


class ChatMessage(RequestTable):
    """One turn; `developer` is the same as `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[
        str | Annotated[list[TextPart], Field(fail_fast=True, max_length=MAX_PARTS)] | None,
        Field(description="A string, or text parts, which are joined; null with tool calls."),
    ] = None
    refusal: Annotated[str | None, Field(description="Text of a refusal by the assistant.")] = None
    name: Annotated[
        str | None,
        Field(
            max_length=256,
            description="Name of the function for role `function`; otherwise not used.",
        ),
    ] = None
    tool_calls: Annotated[
        Annotated[list[MessageToolCall], Field(fail_fast=True, max_length=MAX_CALLS)] | None,
        Field(description="Tool calls made by the assistant."),
    ] = None
    tool_call_id: Annotated[
        CallId | None,
        Field(description="Id of the tool call that a `tool` message answers."),
    ] = None
    function_call: Annotated[
        CalledFunction | None, Field(description="Deprecated form of `tool_calls`.")
    ] = None
    reasoning: Annotated[
        str | None, Field(description="Reasoning of the assistant, for chat templates that use it.")
    ] = None
    reasoning_content: Annotated[str | None, Field(description="Alias of `reasoning`.")] = None

    @property
    def text(self) -> str:
        """All that is said, as one string."""
        content = self.content
        if not isinstance(content, str):
            content = "".join([part.words or "" for part in content or ()])
        return content if self.refusal is None else content + self.refusal

    @property
    def thought(self) -> str | None:
        """What the assistant thought."""
        return self.reasoning if self.reasoning is not None else self.reasoning_content

    @property
    def fault(self) -> MessageFault | None:
        """What does not fit together in it; None if all does."""
        is_assistant = self.role == "assistant"
        other = self.tool_calls or self.function_call or self.refusal or self.thought
        if self.content in (None, []) and not (is_assistant and other):
            what = "is required, except for an assistant message with tool calls or reasoning"
            return MessageFault("content", what, is_missing=self.content is None)
        if self.role == "tool" and self.tool_call_id is None:
            what = "is required for role tool: the id of its tool call"
            return MessageFault("tool_call_id", what, is_missing=True)
        if self.role == "function" and self.name is None:
            return MessageFault("name", "is required for role function", is_missing=True)
        for field in ("tool_calls", "function_call", "refusal"):
            if getattr(self, field) and not is_assistant:
                return MessageFault(
                    field, f"is allowed for role assistant only, the role is {self.role}"
                )
        return self._fault_of_parts(is_assistant=is_assistant)

    def _fault_of_parts(self, *, is_assistant: bool) -> MessageFault | None:
        if self.content is None or isinstance(self.content, str):
            return None
        for at, part in enumerate(self.content):
            place = f"content[{at}]"
            if part.words is None:
                kind = "refusal" if part.type == "refusal" else "text"
                return MessageFault(f"{place}.{kind}", "is required", is_missing=True)
            if part.type == "refusal" and not is_assistant:
                return MessageFault(
                    place, f"is allowed for role assistant only, the role is {self.role}"
                )
        return None

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates know it."""
        role = self.role
        if role in ("system", "user", "developer"):
            return {"role": "system" if role == "developer" else role, "content": self.text}
        shown: dict[str, Any] = {"role": role, "content": self.text}
        if role == "assistant":
            if (thought := self.thought) is not None:
                shown["reasoning"] = shown["reasoning_content"] = thought
            if calls := self._calls():
                shown["tool_calls"] = calls
        else:
            shown["role"] = "tool"
            shown["tool_call_id"] = self.tool_call_id or _legacy_id(self.name or "")
            if self.name is not None:
                shown["name"] = self.name
        return shown

    @property
    def argument_texts(self) -> list[str]:
        """Arguments of its calls, as they were sent."""
        texts = [call.function.arguments for call in self.tool_calls or ()]
        if self.function_call is not None:
            texts.append(self.function_call.arguments)
        return texts

    def _calls(self) -> list[dict[str, Any]]:
        calls = [(call.id, call.function) for call in self.tool_calls or ()]
        if self.function_call is not None:
            calls.append((_legacy_id(self.function_call.name), self.function_call))
        return [
            {"id": id, "type": "function", "function": function.for_template()}
            for id, function in calls
        ]


Messages = Annotated[
    list[ChatMessage],
    Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES),
    few_entries(),
]


def _legacy_id(name: str) -> str:
    """Calls in the older form have no id: their function stands for it."""
    return f"call_{name}"


def _parsed(arguments: str) -> Any:  # noqa: ANN401 - any JSON object, or the text
    """Arguments as an object; what is none stays text."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
