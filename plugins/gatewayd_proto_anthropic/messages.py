"""From Anthropic's messages to those of a chat completion."""

from __future__ import annotations

import json
from typing import Any

from gatewayd_proto_anthropic.fields import entries, kind_of, mapping, note_others, string, wrong
from gatewayd_proto_anthropic.places import Turn

Message = dict[str, Any]
_Placed = tuple[Message, Turn]

_MESSAGE = frozenset(("role", "content"))
_BLOCKS = {
    kind: frozenset(("type", "cache_control", *names))
    for kind, names in {
        "text": ("text",),
        "document": ("source",),
        "tool_use": ("id", "name", "input"),
        "tool_result": ("tool_use_id", "content", "is_error"),
        "thinking": ("thinking", "signature"),
    }.items()
}
"""Fields of blocks that act, or are hints to a cache."""


def messages_of(fields: dict[str, Any], ignored: list[str]) -> tuple[list[Message], list[Turn]]:
    """The system prompt and the conversation.

    Args:
        fields: of the request.
        ignored: gets the places of what is left out.

    Returns:
        The messages, and where each stood.

    Raises:
        Refusal: something in them is wrong, or not text.
    """
    found: list[_Placed] = []
    if fields.get("system") is not None:
        text = text_of(fields["system"], "system", ignored)
        found.append(({"role": "system", "content": text}, Turn("system")))
    if "messages" not in fields:
        wrong("messages", "is required", code="missing_required_parameter")
    role = None
    for place, message in entries(fields["messages"], "messages"):
        role = message.get("role")
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if role == "user":
            found += _user(blocks, place, ignored)
        elif role == "assistant":
            found.append(_assistant(blocks, place, ignored))
        elif role == "system":
            text = text_of(content, f"{place}.content", ignored)
            found.append(({"role": "system", "content": text}, Turn(place)))
        else:
            wrong(f"{place}.role", 'must be "user" or "assistant"')
        note_others(message, _MESSAGE, place, ignored)
    if role is None:
        wrong("messages", "is empty; it needs at least one message")
    if found[-1][0].get("tool_calls"):
        wrong("messages", "ends with calls of tools: their results come next")
    combined = _combined(found)
    return [message for message, _ in combined], [turn for _, turn in combined]


def text_of(value: object, place: str, ignored: list[str]) -> str:
    """A string, or blocks of text, which are joined by line breaks.

    Raises:
        Refusal: it is neither.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        wrong(place, f"must be a string or a list, not {kind_of(value)}", code="invalid_type")
    return "\n".join([_text(block, where, ignored) for where, block in entries(value, place)])


def _text(block: dict[str, Any], place: str, ignored: list[str]) -> str:
    kind = block.get("type")
    if isinstance(kind, str):
        note_others(block, _BLOCKS.get(kind, _BLOCKS["text"]), place, ignored)
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


def _user(blocks: object, place: str, ignored: list[str]) -> list[_Placed]:
    """Results of tools are messages of their own, in order with the text between them."""
    found: list[_Placed] = []
    texts: list[str] = []
    for where, block in entries(blocks, f"{place}.content"):
        if block.get("type") != "tool_result":
            texts.append(_text(block, where, ignored))
            continue
        if texts:
            found.append(({"role": "user", "content": "\n".join(texts)}, Turn(place)))
            texts = []
        note_others(block, _BLOCKS["tool_result"], where, ignored)
        content = block.get("content")
        text = "" if content is None else text_of(content, f"{where}.content", ignored)
        if block.get("is_error"):
            text = f"Error: {text}"
        call = string(block.get("tool_use_id"), f"{where}.tool_use_id")
        found.append(({"role": "tool", "tool_call_id": call, "content": text}, Turn(where)))
    if texts or not found:
        found.append(({"role": "user", "content": "\n".join(texts)}, Turn(place)))
    return found


def _assistant(blocks: object, place: str, ignored: list[str]) -> _Placed:
    texts, thoughts, calls, places = [], [], [], []
    for where, block in entries(blocks, f"{place}.content"):
        kind = block.get("type")
        if kind in ("thinking", "tool_use"):
            note_others(block, _BLOCKS[kind], where, ignored)
        match kind:
            case "thinking":
                thoughts.append(string(block.get("thinking"), f"{where}.thinking"))
            case "redacted_thinking":
                ignored.append(where)
            case "tool_use":
                arguments = mapping(block.get("input", {}), f"{where}.input")
                function = {
                    "name": string(block.get("name"), f"{where}.name"),
                    "arguments": json.dumps(arguments, ensure_ascii=False),
                }
                call = string(block.get("id"), f"{where}.id")
                calls.append({"id": call, "type": "function", "function": function})
                places.append(where)
            case _:
                texts.append(_text(block, where, ignored))
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message, Turn(place, places)


def _combined(messages: list[_Placed]) -> list[_Placed]:
    """Turns of one role in a row are one turn, where the first stood."""
    found: list[_Placed] = []
    for message, turn in messages:
        last = found[-1][0] if found else {}
        plain = {"role", "content"}
        if message["role"] == last.get("role") and message.keys() == last.keys() == plain:
            last["content"] = f"{last['content']}\n{message['content']}"
        else:
            found.append((message, turn))
    return found
