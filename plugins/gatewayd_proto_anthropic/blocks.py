"""Content blocks of a complete message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gatewayd_hooks.parsing import Arguments, Part, Reasoning, Text, ToolCall
from gatewayd_hooks.protocols import ChatAnswer
from gatewayd_proto_anthropic.events import call_id

Block = dict[str, Any]


def blocks_of(answer: ChatAnswer, parts: Iterable[Part], *, thinks: bool) -> list[Block]:
    """Merge adjacent parts of one kind into blocks."""
    blocks: list[Block] = []
    pieces: list[list[str]] = []

    def add(kind: str, text: str) -> None:
        if not blocks or blocks[-1]["type"] != kind:
            blocks.append({"type": kind})
            pieces.append([])
        pieces[-1].append(text)

    for part in parts:
        match part:
            case Text(text):
                add("text", text)
            case Reasoning(text) if thinks:
                add("thinking", text)
            case ToolCall(call, name):
                blocks.append({"type": "tool_use", "id": call_id(answer, call), "name": name})
                pieces.append([])
            case Arguments(_, text):
                pieces[-1].append(text)
    for block, texts in zip(blocks, pieces, strict=True):
        text = "".join(texts)
        match block["type"]:
            case "text":
                block["text"] = text
            case "thinking":
                block |= {"thinking": text, "signature": ""}
            case _:
                block["input"] = _input(text)
    return blocks


def _input(text: str) -> dict[str, Any]:
    """Return arguments as an object; truncated ones are returned as text."""
    try:
        value = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        value = None
    # The key that Anthropic's documentation uses for invalid arguments.
    return value if isinstance(value, dict) else {"INVALID_JSON": text}
