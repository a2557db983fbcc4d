"""Converts a request of the Messages API to the body of a chat completion."""

from __future__ import annotations

from typing import Any, NamedTuple

from gatewayd_hooks.requests.checking import check
from gatewayd_proto_anthropic.error_fields import ErrorFields
from gatewayd_proto_anthropic.messages import messages_of
from gatewayd_proto_anthropic.tables import (
    AnthropicTool,
    CountRequest,
    MessagesRequest,
    NamedChoice,
    OutputFormat,
    PromptTable,
    ToolChoice,
)

_SAME = ("temperature", "top_p", "top_k", "stream", "max_tokens")
_TIERS = {"auto": "auto", "standard_only": "default"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class AnthropicRequest(NamedTuple):
    """Converted request.

    Attributes:
        body: of a chat completion.
        ignored: fields without effect.
        thinks: whether reasoning is included in the answer.
        error_fields: locations of the body's fields in the request.
        tier_field: field with the client's service class.
    """

    body: dict[str, Any]
    ignored: list[str]
    thinks: bool
    error_fields: ErrorFields
    tier_field: str = "service_tier"


def convert_request(fields: dict[str, Any], *, counts: bool = False) -> AnthropicRequest:
    """Convert a request.

    Args:
        fields: of the request.
        counts: whether it only counts tokens.

    Raises:
        Refusal: a field is invalid.
    """
    table: type[PromptTable] = CountRequest if counts else MessagesRequest
    request, ignored = check(table, fields)
    messages, turns = messages_of(request)
    body: dict[str, Any] = {"model": request.model, "messages": messages}
    # Prefill: the answer continues the last message of the assistant.
    if messages[-1]["role"] == "assistant":
        body["continue_final_message"] = True
    if isinstance(request, MessagesRequest):
        _add_generation(request, body)
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    if request.tool_choice is not None:
        _add_choice(request.tool_choice, body)
    form = _add_output(request, body)
    # `fast` overrides the tier; `standard` counts only without one.
    is_by_speed = request.speed is not None and (
        request.speed == "fast" or "service_tier" not in body
    )
    if is_by_speed:
        body["service_tier"] = "fast" if request.speed == "fast" else "default"
    thinks = request.thinking is None or request.thinking.type != "disabled"
    if request.thinking is not None:
        body["enable_thinking"] = thinks
    field = "speed" if is_by_speed else "service_tier"
    return AnthropicRequest(body, ignored, thinks, ErrorFields(turns, form), field)


def _add_generation(request: MessagesRequest, body: dict[str, Any]) -> None:
    for name in _SAME:
        if (value := getattr(request, name)) is not None:
            body[name] = value
    if request.stop_sequences:
        body["stop"] = request.stop_sequences
    if request.metadata is not None and request.metadata.user_id is not None:
        body["user"] = request.metadata.user_id
    if request.service_tier is not None:
        body["service_tier"] = _TIERS[request.service_tier]


def _tool(tool: AnthropicTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _add_choice(choice: ToolChoice | NamedChoice, body: dict[str, Any]) -> None:
    if isinstance(choice, NamedChoice):
        body["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    else:
        body["tool_choice"] = _CHOICES[choice.type]
    if choice.disable_parallel_tool_use is not None:
        body["parallel_tool_calls"] = not choice.disable_parallel_tool_use


def _add_output(request: PromptTable, body: dict[str, Any]) -> str:
    """Add the constraint on the answer; return the field that contains it."""
    config = request.output_config
    if config is not None and config.effort is not None:
        body["reasoning_effort"] = config.effort
    form: OutputFormat | None = None if config is None else config.format
    place = "output_config.format"
    if form is None:
        form, place = request.output_format, "output_format"
    if form is not None:
        named = {"name": "output", "schema": form.schema_, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    return place
