"""Messages of a conversation: request schema, and conversion for chat templates."""

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
    """Part of a message: text, or the text of an assistant's refusal."""

    type: Literal["text", "refusal", "input_text", "output_text"]
    text: str | None = None
    refusal: Annotated[str | None, Field(description="Text of a part of type `refusal`.")] = None

    @property
    def content_text(self) -> str | None:
        """Text of the part; None if it is missing."""
        return self.refusal if self.type == "refusal" else self.text


class CalledFunction(RequestTable):
    """Function and arguments of a tool call."""

    name: CallName
    arguments: Annotated[str, Field(description="Arguments as JSON, as the model returned them.")]

    def for_template(self) -> dict[str, Any]:
        """Convert it for chat templates, which serialize the arguments themselves."""
        return {"name": self.name, "arguments": _parsed(self.arguments)}


class MessageToolCall(RequestTable):
    """Tool call made by an earlier response."""

    id: CallId
    type: Annotated[Literal["function"], OrNull()] = "function"
    function: CalledFunction


class MessageFault(NamedTuple):
    """Validation error of a message.

    Attributes:
        field: path of the field within the message.
        what: rest of the error message, after the field's path.
        is_missing: whether the field is missing.
    """

    field: str
    what: str
    is_missing: bool = False


class ChatMessage(RequestTable):
    """Message of a conversation; `developer` is an alias of `system`."""

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
        """Text of all parts and the refusal, concatenated."""
        content = self.content
        if not isinstance(content, str):
            content = "".join([part.content_text or "" for part in content or ()])
        return content if self.refusal is None else content + self.refusal

    @property
    def reasoning_text(self) -> str | None:
        """Reasoning of the assistant, from either field."""
        return self.reasoning if self.reasoning is not None else self.reasoning_content

    @property
    def fault(self) -> MessageFault | None:
        """Inconsistency between its fields; None if it is valid."""
        is_assistant = self.role == "assistant"
        other = self.tool_calls or self.function_call or self.refusal or self.reasoning_text
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
            if part.content_text is None:
                kind = "refusal" if part.type == "refusal" else "text"
                return MessageFault(f"{place}.{kind}", "is required", is_missing=True)
            if part.type == "refusal" and not is_assistant:
                return MessageFault(
                    place, f"is allowed for role assistant only, the role is {self.role}"
                )
        return None

    def for_template(self) -> dict[str, Any]:
        """Convert the message for chat templates."""
        role = self.role
        if role in ("system", "user", "developer"):
            return {"role": "system" if role == "developer" else role, "content": self.text}
        shown: dict[str, Any] = {"role": role, "content": self.text}
        if role == "assistant":
            if (thought := self.reasoning_text) is not None:
                # Templates use one name or the other.
                shown["reasoning"] = shown["reasoning_content"] = thought
            if calls := self._calls():
                shown["tool_calls"] = calls
        else:
            shown["role"] = "tool"
            # Messages of role `function` have no id: call and output derive it from the name.
            shown["tool_call_id"] = self.tool_call_id or _legacy_id(self.name or "")
            if self.name is not None:
                shown["name"] = self.name
        return shown

    @property
    def argument_texts(self) -> list[str]:
        """Arguments of its calls, as received."""
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
    """Return an id for a legacy call, which has none, from its function's name."""
    return f"call_{name}"


def _parsed(arguments: str) -> Any:  # noqa: ANN401 - any JSON object, or the text
    """Parse arguments to an object; return them as text if they are not one."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
