"""Tables of messages and of their content blocks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gatewayd_hooks.requests.fields import (
    MAX_MESSAGES,
    MAX_PARTS,
    CallId,
    CallName,
    few_entries,
)
from gatewayd_hooks.requests.tables import ByType, Ignored, Noted, RequestTable

_NO_TEXT = "which this model cannot read: send text"

Hint = Annotated[Any, Noted(), Field(description="Not needed: the prefix cache is automatic.")]


class TextBlock(RequestTable):
    """Block of text."""

    type: Literal["text"]
    text: str
    citations: Annotated[Any, Ignored((None, [], {"enabled": False}))] = None
    cache_control: Hint = None


class TextSource(RequestTable):
    """Inline text of a document."""

    type: Literal["text"]
    data: str
    media_type: Annotated[Any, Noted()] = None


class DocumentBlock(RequestTable):
    """Plain-text document."""

    type: Literal["document"]
    source: Annotated[
        TextSource, ByType(reasons=dict.fromkeys(("base64", "content", "file", "url"), _NO_TEXT))
    ]
    title: Annotated[Any, Ignored()] = None
    context: Annotated[Any, Ignored()] = None
    citations: Annotated[Any, Ignored((None, {"enabled": False}))] = None
    cache_control: Hint = None


Texts = Annotated[
    list[Annotated[TextBlock | DocumentBlock, ByType()]],
    Field(fail_fast=True, max_length=MAX_PARTS),
]


class ToolResultBlock(RequestTable):
    """Result of a tool."""

    type: Literal["tool_result"]
    tool_use_id: CallId
    content: str | Texts | None = None
    is_error: bool | None = None
    toolset_name: Annotated[Any, Ignored()] = None
    cache_control: Hint = None


class ToolUseBlock(RequestTable):
    """Tool call of an earlier answer."""

    type: Literal["tool_use"]
    id: CallId
    name: CallName
    input: dict[str, Any] = Field(default_factory=dict)
    caller: Annotated[Any, Ignored((None, {"type": "direct"}))] = None
    toolset_name: Annotated[Any, Ignored()] = None
    cache_control: Hint = None


class ThinkingBlock(RequestTable):
    """Reasoning of an earlier answer."""

    type: Literal["thinking"]
    thinking: str
    signature: Annotated[Any, Noted(), Field(description="Not used.")] = None


class RedactedThinkingBlock(RequestTable):
    """Encrypted reasoning that only Anthropic's servers can read."""

    type: Literal["redacted_thinking"]
    data: Annotated[Any, Ignored()] = None


UserBlock = Annotated[TextBlock | DocumentBlock | ToolResultBlock, ByType()]
AssistantBlock = Annotated[
    TextBlock | DocumentBlock | ToolUseBlock | ThinkingBlock | RedactedThinkingBlock, ByType()
]
UserBlocks = Annotated[list[UserBlock], Field(fail_fast=True, max_length=MAX_PARTS)]
AssistantBlocks = Annotated[list[AssistantBlock], Field(fail_fast=True, max_length=MAX_PARTS)]


class UserMessage(RequestTable):
    """Message of the user, with text and tool results."""

    role: Literal["user"]
    content: str | UserBlocks


class AssistantMessage(RequestTable):
    """Earlier answer, or the beginning of this one."""

    role: Literal["assistant"]
    content: str | AssistantBlocks


class SystemMessage(RequestTable):
    """Instructions within the conversation."""

    role: Literal["system"]
    content: str | Texts
    clear_at: Annotated[Any, Ignored((None, "never"))] = None
    output_config: Annotated[Any, Ignored()] = None


Message = UserMessage | AssistantMessage | SystemMessage
Messages = Annotated[
    list[Annotated[Message, ByType("role")]],
    Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES),
    few_entries(("content",)),
]
