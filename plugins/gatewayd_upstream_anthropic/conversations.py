"""Translation of messages to Anthropic's: a system prompt, and turns that alternate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gatewayd_hooks.upstreams import UpstreamRefusal

Block = dict[str, Any]


def conversation_of(messages: Sequence[Mapping[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Return the system prompt and the messages.

    Args:
        messages: of a chat completion.

    Raises:
        UpstreamRefusal: the arguments of an earlier call are no object.
    """
    system: list[str] = []
    turns: list[dict[str, Any]] = []
    for at, message in enumerate(messages):
        role = message["role"]
        if role in ("system", "developer"):
            system.append(_text(message))
            continue
        blocks = _blocks(message, at)
        role = "assistant" if role == "assistant" else "user"
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return "\n\n".join(system), turns


def _blocks(message: Mapping[str, Any], at: int) -> list[Block]:
    text = _text(message)
    match message["role"]:
        case "tool":
            return [_result(message["tool_call_id"], text)]
        case "function":
            return [_result(_legacy_id(message["name"]), text)]
    blocks: list[Block] = [{"type": "text", "text": text}] if text else []
    calls = message.get("tool_calls") or ()
    blocks += [_use(call["id"], call["function"], at) for call in calls]
    if (function := message.get("function_call")) is not None:
        blocks.append(_use(_legacy_id(function["name"]), function, at))
    return blocks


def _result(call: str, text: str) -> Block:
    return {"type": "tool_result", "tool_use_id": call, "content": text}


def _use(call: str, function: Mapping[str, Any], at: int) -> Block:
    try:
        value = msgspec.json.decode(function["arguments"] or "{}")
    except (msgspec.DecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        param = f"messages[{at}].tool_calls"
        raise UpstreamRefusal(400, f"{param} has arguments that are no JSON object", param=param)
    return {"type": "tool_use", "id": call, "name": function["name"], "input": value}


def _legacy_id(name: str) -> str:
    """Return an id for a call of the legacy format, which has none."""
    return f"call_{name}"


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if not isinstance(content, str):
        content = "".join([part.get("text") or part.get("refusal") or "" for part in content or ()])
    return content + (message.get("refusal") or "")
