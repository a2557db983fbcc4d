"""Translation of chat completion bodies to Anthropic's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gatewayd_hooks.upstreams import UpstreamRefusal
from gatewayd_upstream_anthropic.conversations import conversation_of

_SAME = ("model", "temperature", "top_p", "top_k")
_TRANSLATED = frozenset(
    (
        *_SAME,
        *("messages", "max_tokens", "max_completion_tokens", "stop", "tools", "tool_choice"),
        *("parallel_tool_calls", "functions", "function_call", "response_format"),
        *("reasoning_effort", "enable_thinking", "continue_final_message"),
    )
)
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "add_generation_prompt": (True, False),
}
"""Values of other fields that ask for nothing."""


def body_of(chat: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
    """Translate a body.

    Args:
        chat: of a chat completion.
        max_tokens: if it sets none.

    Raises:
        UpstreamRefusal: a field has no counterpart.
    """
    for name, value in chat.items():
        if name not in _TRANSLATED and value not in _NEUTRAL.get(name, ()):
            raise no_counterpart(name)
    system, messages = conversation_of(chat["messages"])
    found: dict[str, Any] = {name: chat[name] for name in _SAME if name in chat}
    found["max_tokens"] = chat.get("max_completion_tokens") or chat.get("max_tokens") or max_tokens
    found["messages"] = messages
    if system:
        found["system"] = system
    if stop := chat.get("stop"):
        found["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    found |= _tools(chat)
    found |= _output(chat)
    return found


def no_counterpart(name: str) -> UpstreamRefusal:
    """Return the refusal of a field."""
    return UpstreamRefusal(
        400, f"{name} has no counterpart in Anthropic's API: omit it", param=name
    )


def _tools(chat: Mapping[str, Any]) -> dict[str, Any]:
    functions = [tool["function"] for tool in chat.get("tools") or ()]
    functions += chat.get("functions") or ()
    if not functions:
        return {}
    choice = chat.get("tool_choice") or chat.get("function_call") or "auto"
    if isinstance(choice, dict) and (allowed := choice.get("allowed_tools")) is not None:
        names = {tool["function"]["name"] for tool in allowed["tools"]}
        functions = [one for one in functions if one["name"] in names]
        choice = allowed["mode"]
    if isinstance(choice, dict):
        name = choice["name"] if "name" in choice else choice["function"]["name"]
        chosen: dict[str, Any] = {"type": "tool", "name": name}
    else:
        chosen = {"type": "any" if choice == "required" else choice}
    # An answer in the legacy format has one call at most.
    is_single = chat.get("parallel_tool_calls") is False or bool(chat.get("functions"))
    if is_single and chosen["type"] != "none":
        chosen["disable_parallel_tool_use"] = True
    return {"tools": [_tool(function) for function in functions], "tool_choice": chosen}


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    tool = {
        "name": function["name"],
        "input_schema": function.get("parameters") or {"type": "object"},
    }
    if function.get("description"):
        tool["description"] = function["description"]
    if function.get("strict"):
        tool["strict"] = True
    return tool


def _output(chat: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    config: dict[str, Any] = {}
    form = chat.get("response_format") or {"type": "text"}
    if form["type"] == "json_schema":
        config["format"] = {"type": "json_schema", "schema": form["json_schema"]["schema"]}
    elif form["type"] != "text":
        raise no_counterpart("response_format")
    effort = chat.get("reasoning_effort")
    if effort == "none" or chat.get("enable_thinking") is False:
        found["thinking"] = {"type": "disabled"}
    elif effort is not None:
        config["effort"] = effort
    if chat.get("enable_thinking"):
        found["thinking"] = {"type": "adaptive"}
    return {**found, "output_config": config} if config else found
