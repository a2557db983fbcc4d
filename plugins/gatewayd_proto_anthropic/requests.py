"""From a request of the Messages API to the body of a chat completion."""

from __future__ import annotations

from typing import Any, NamedTuple

from gatewayd_proto_anthropic.fields import entries, kind_of, mapping, note_others, string, wrong
from gatewayd_proto_anthropic.messages import messages_of
from gatewayd_proto_anthropic.places import Places

_SAME = ("temperature", "top_p", "top_k", "stream")
_DONE = frozenset(
    (
        *_SAME,
        *("model", "system", "messages", "max_tokens", "stop_sequences", "tools", "tool_choice"),
        *("metadata", "service_tier", "speed", "output_config", "output_format", "thinking"),
        # Hints to a cache: what is common is found without them.
        "cache_control",
    )
)
_TIERS = {"auto": "auto", "standard_only": "default"}
_SPEEDS = {"standard": "default", "fast": "fast"}
_CHOICE = frozenset(("type", "name", "disable_parallel_tool_use"))
_FORM = frozenset(("type", "schema"))
_TOOL = frozenset(("name", "description", "input_schema", "type", "strict", "cache_control"))


class Asked(NamedTuple):
    """A request in the gateway's words.

    Attributes:
        body: of a chat completion.
        ignored: fields that are not acted on.
        thinks: whether what was thought is shown.
        places: where the client wrote what is in the body.
    """

    body: dict[str, Any]
    ignored: list[str]
    thinks: bool
    places: Places


def asked_of(fields: dict[str, Any], *, counts: bool = False) -> Asked:
    """Read a request.

    Args:
        fields: of the request.
        counts: whether its tokens are counted alone.

    Raises:
        Refusal: a field is wrong; values are the gateway's to check.
    """
    ignored = [name for name, value in fields.items() if name not in _DONE and value is not None]
    if fields.get("mcp_servers"):
        wrong("mcp_servers", "is not supported: this server calls no other")
    for name in ("model", *(() if counts else ("max_tokens",))):
        if fields.get(name) is None:
            wrong(name, "is required", code="missing_required_parameter")
    model = string(fields["model"], "model")
    messages, turns = messages_of(fields, ignored)
    body: dict[str, Any] = {"model": model, "messages": messages}
    if body["messages"][-1]["role"] == "assistant":
        body["continue_final_message"] = True
    body |= {name: fields[name] for name in _SAME if fields.get(name) is not None}
    if fields.get("max_tokens") is not None and not counts:
        body["max_tokens"] = fields["max_tokens"]
    if fields.get("stop_sequences"):
        body["stop"] = _stops(fields["stop_sequences"])
    if fields.get("metadata") is not None:
        metadata = mapping(fields["metadata"], "metadata")
        note_others(metadata, frozenset(("user_id",)), "metadata", ignored)
        user = metadata.get("user_id")
        if user is not None:
            body["user"] = string(user, "metadata.user_id")
    _add_tools(fields, body, ignored)
    form = _add_output(fields, body, ignored)
    _add_tier(fields, body)
    thinks = _thinks(fields, body, ignored)
    return Asked(body, list(dict.fromkeys(ignored)), thinks, Places(turns, form))


def _stops(value: object) -> list[str]:
    if not isinstance(value, list):
        wrong("stop_sequences", f"must be a list, not {kind_of(value)}", code="invalid_type")
    return [string(one, f"stop_sequences[{at}]") for at, one in enumerate(value)]


def _add_tools(fields: dict[str, Any], body: dict[str, Any], ignored: list[str]) -> None:
    tools = []
    for place, tool in entries(fields.get("tools") or [], "tools"):
        kind = tool.get("type")
        if kind not in (None, "custom"):
            wrong(
                f"{place}.type",
                f"is {str(kind)[:64]!r}; tools that a server runs are not there, send your own "
                'with "custom"',
            )
        function = {
            "name": string(tool.get("name"), f"{place}.name"),
            "parameters": mapping(tool.get("input_schema"), f"{place}.input_schema"),
        }
        if tool.get("description") is not None:
            function["description"] = string(tool["description"], f"{place}.description")
        if tool.get("strict") is not None:
            function["strict"] = tool["strict"]
        tools.append({"type": "function", "function": function})
        note_others(tool, _TOOL, place, ignored)
    if tools:
        body["tools"] = tools
    if fields.get("tool_choice") is not None:
        choice = mapping(fields["tool_choice"], "tool_choice")
        note_others(choice, _CHOICE, "tool_choice", ignored)
        body |= _choice(choice)


def _choice(choice: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    match choice.get("type"):
        case "auto":
            found["tool_choice"] = "auto"
        case "any":
            found["tool_choice"] = "required"
        case "none":
            found["tool_choice"] = "none"
        case "tool":
            name = string(choice.get("name"), "tool_choice.name")
            found["tool_choice"] = {"type": "function", "function": {"name": name}}
        case _:
            wrong("tool_choice.type", 'must be "auto", "any", "tool" or "none"')
    alone = choice.get("disable_parallel_tool_use")
    if alone is not None:
        if not isinstance(alone, bool):
            wrong("tool_choice.disable_parallel_tool_use", "must be true or false")
        found["parallel_tool_calls"] = not alone
    return found


def _add_output(fields: dict[str, Any], body: dict[str, Any], ignored: list[str]) -> str:
    """Add the form of the answer; returns the field that it stands in."""
    config = fields.get("output_config") or {}
    config = mapping(config, "output_config")
    ignored += [f"output_config.{n}" for n in config if n not in ("format", "effort")]
    if config.get("effort") is not None:
        body["reasoning_effort"] = string(config["effort"], "output_config.effort")
    form, place = config.get("format"), "output_config.format"
    if form is None:
        form, place = fields.get("output_format"), "output_format"
    if form is None:
        return place
    form = mapping(form, place)
    note_others(form, _FORM, place, ignored)
    if form.get("type") != "json_schema":
        wrong(f"{place}.type", 'must be "json_schema"')
    schema = mapping(form.get("schema"), f"{place}.schema")
    named = {"name": "output", "schema": schema, "strict": True}
    body["response_format"] = {"type": "json_schema", "json_schema": named}
    return place


def _add_tier(fields: dict[str, Any], body: dict[str, Any]) -> None:
    for name, known in (("service_tier", _TIERS), ("speed", _SPEEDS)):
        value = fields.get(name)
        if value is None:
            continue
        if not isinstance(value, str) or value not in known:
            wrong(name, f"must be {' or '.join(known)}")
        if known[value] != "default" or "service_tier" not in body:
            body["service_tier"] = known[value]


def _thinks(fields: dict[str, Any], body: dict[str, Any], ignored: list[str]) -> bool:
    """Whether what was thought is shown; how long to think is the model's."""
    if fields.get("thinking") is None:
        return True
    thinking = mapping(fields["thinking"], "thinking")
    kind = thinking.get("type")
    if kind not in ("enabled", "disabled", "adaptive", "between_tools"):
        wrong("thinking.type", 'must be "enabled", "adaptive" or "disabled"')
    ignored += [f"thinking.{name}" for name in thinking if name != "type"]
    body["enable_thinking"] = bool(kind != "disabled")
    return bool(kind != "disabled")
