"""Converts Anthropic's messages to those of a chat completion."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gatewayd_hooks.requests.refusal import RequestRefusal
from gatewayd_proto_anthropic.content import (
    AssistantMessage,
    DocumentBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)
from gatewayd_proto_anthropic.error_fields import AnthropicTurn
from gatewayd_proto_anthropic.tables import PromptTable

Message = dict[str, Any]
_Placed = tuple[Message, AnthropicTurn]


def messages_of(request: PromptTable) -> tuple[list[Message], list[AnthropicTurn]]:
    """Convert the system prompt and the conversation.

    Returns:
        The messages, and the location of each in the request.

    Raises:
        Refusal: it ends with tool calls.
    """
    found: list[_Placed] = []
    if request.system is not None:
        found.append(
            ({"role": "system", "content": _text_of(request.system)}, AnthropicTurn("system"))
        )
    for at, message in enumerate(request.messages):
        place = f"messages[{at}]"
        if isinstance(message, UserMessage):
            found += _user(message, place)
        elif isinstance(message, AssistantMessage):
            found.append(_assistant(message, place))
        else:
            text = _text_of(message.content)
            found.append(({"role": "system", "content": text}, AnthropicTurn(place)))
    if found[-1][0].get("tool_calls"):
        sentence = "messages ends with tool calls: their results must follow"
        raise RequestRefusal(400, sentence, param="messages")
    combined = _combined(found)
    return [message for message, _ in combined], [turn for _, turn in combined]


def _text_of(content: str | Sequence[TextBlock | DocumentBlock] | None) -> str:
    """Return a string, or blocks of text joined by line breaks."""
    if isinstance(content, str):
        return content
    return "\n".join([_text(block) for block in content or ()])


def _text(block: TextBlock | DocumentBlock) -> str:
    return block.source.data if isinstance(block, DocumentBlock) else block.text


def _user(message: UserMessage, place: str) -> list[_Placed]:
    """Convert a user message; tool results become separate messages, in order with the text."""
    if isinstance(message.content, str):
        return [({"role": "user", "content": message.content}, AnthropicTurn(place))]
    found: list[_Placed] = []
    texts: list[str] = []
    for at, block in enumerate(message.content):
        if not isinstance(block, ToolResultBlock):
            texts.append(_text(block))
            continue
        if texts:
            found.append(({"role": "user", "content": "\n".join(texts)}, AnthropicTurn(place)))
            texts = []
        text = _text_of(block.content)
        found.append(
            (
                {
                    "role": "tool",
                    "tool_call_id": block.tool_use_id,
                    # A chat completion has no field for failed calls.
                    "content": f"Error: {text}" if block.is_error else text,
                },
                AnthropicTurn(f"{place}.content[{at}]"),
            )
        )
    # A message without any blocks stays a message.
    if texts or not found:
        found.append(({"role": "user", "content": "\n".join(texts)}, AnthropicTurn(place)))
    return found


def _assistant(message: AssistantMessage, place: str) -> _Placed:
    if isinstance(message.content, str):
        return {"role": "assistant", "content": message.content}, AnthropicTurn(place)
    texts, thoughts, calls, places = [], [], [], []
    for at, block in enumerate(message.content):
        match block:
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case RedactedThinkingBlock():
                pass
            case ToolUseBlock():
                arguments = json.dumps(block.input, ensure_ascii=False)
                function = {"name": block.name, "arguments": arguments}
                calls.append({"id": block.id, "type": "function", "function": function})
                places.append(f"{place}.content[{at}]")
            case _:
                texts.append(_text(block))
    turn: Message = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        turn["reasoning_content"] = "\n".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    return turn, AnthropicTurn(place, places)


def _combined(messages: list[_Placed]) -> list[_Placed]:
    """Merge consecutive plain messages of one role, at the location of the first."""
    found: list[_Placed] = []
    for message, turn in messages:
        last = found[-1][0] if found else {}
        # Messages with tool calls, results or reasoning stay separate.
        plain = {"role", "content"}
        if message["role"] == last.get("role") and message.keys() == last.keys() == plain:
            last["content"] = f"{last['content']}\n{message['content']}"
        else:
            found.append((message, turn))
    return found
