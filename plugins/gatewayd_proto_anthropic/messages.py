"""From Anthropic's messages to those of a chat completion."""

from __future__ import annotations

import json
from typing import Any

from gatewayd_proto_anthropic.fields import entries, kind_of, mapping, string, wrong

Message = dict[str, Any]


def messages_of(fields: dict[str, Any], ignored: list[str]) -> list[Message]:
    """The system prompt and the conversation.

    Args:
        fields: of the request.
        ignored: gets the names of what is left out.

    Raises:
        Refusal: something in them is wrong, or not text.
    """
    found: list[Message] = []
    if fields.get("system") is not None:
        found.append({"role": "system", "content": text_of(fields["system"], "system")})
    if "messages" not in fields:
        wrong("messages", "is required", code="missing_required_parameter")
    role = None
    for place, message in entries(fields["messages"], "messages"):
        role = message.get("role")
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if role == "user":
            found += _user(blocks, f"{place}.content")
        elif role == "assistant":
            found.append(_assistant(blocks, f"{place}.content", ignored))
        elif role == "system":
            found.append({"role": "system", "content": text_of(content, f"{place}.content")})
        else:
            wrong(f"{place}.role", 'must be "user" or "assistant"')
    if role is None:
        wrong("messages", "is empty; it needs at least one message")
    if found[-1].get("tool_calls"):
        wrong("messages", "ends with calls of tools: their results come next")
    return _combined(found)


def text_of(value: object, place: str) -> str:
    """A string, or blocks of text, which are joined by line breaks.

    Raises:
        Refusal: it is neither.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        wrong(place, f"must be a string or a list, not {kind_of(value)}", code="invalid_type")
    return "\n".join([_text(block, where) for where, block in entries(value, place)])


def _text(block: dict[str, Any], place: str) -> str:
    kind = block.get("type")
    if kind == "text":
        return string(block.get("text"), f"{place}.text")
    if kind == "document":
        source = mapping(block.get("source"), f"{place}.source")
        if source.get("type") == "text":
            return string(source.get("data"), f"{place}.source.data")
    if kind in ("image", "document"):
        wrong(place, f"is of type {kind}, which this model cannot read: send text", code="no_text")
    if not isinstance(kind, str):
        wrong(f"{place}.type", f"must be a string, not {kind_of(kind)}", code="invalid_type")
    wrong(place, f"is of type {kind[:64]!r}, which cannot stand here; send text")


def _user(blocks: object, place: str) -> list[Message]:
    """Results of tools are messages of their own, in order with the text between them."""
    found: list[Message] = []
    texts: list[str] = []
    for where, block in entries(blocks, place):
        if block.get("type") != "tool_result":
            texts.append(_text(block, where))
            continue
        if texts:
            found.append({"role": "user", "content": "\n".join(texts)})
            texts = []
        content = block.get("content")
        text = "" if content is None else text_of(content, f"{where}.content")
        if block.get("is_error"):
            text = f"Error: {text}"
        call = string(block.get("tool_use_id"), f"{where}.tool_use_id")
        found.append({"role": "tool", "tool_call_id": call, "content": text})
    if texts or not found:
        found.append({"role": "user", "content": "\n".join(texts)})
    return found


def _assistant(blocks: object, place: str, ignored: list[str]) -> Message:
    texts, thoughts, calls = [], [], []
    for where, block in entries(blocks, place):
        match block.get("type"):
            case "thinking":
                thoughts.append(string(block.get("thinking"), f"{where}.thinking"))
            case "redacted_thinking":
                ignored.append("messages.redacted_thinking")
            case "tool_use":
                arguments = mapping(block.get("input", {}), f"{where}.input")
                function = {
                    "name": string(block.get("name"), f"{where}.name"),
                    "arguments": json.dumps(arguments, ensure_ascii=False),
                }
                call = string(block.get("id"), f"{where}.id")
                calls.append({"id": call, "type": "function", "function": function})
            case _:
                texts.append(_text(block, where))
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _combined(messages: list[Message]) -> list[Message]:
    """Turns of one role in a row are one turn."""
    found: list[Message] = []
    for message in messages:
        last = found[-1] if found else {}
        plain = {"role", "content"}
        if message["role"] == last.get("role") and message.keys() == last.keys() == plain:
            last["content"] = f"{last['content']}\n{message['content']}"
        else:
            found.append(message)
    return found
