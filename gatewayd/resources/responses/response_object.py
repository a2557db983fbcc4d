"""Conversion of a response request to a chat completion, and the response object."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

from gatewayd.errors import GatewayError, InvalidRequest
from gatewayd.http.openai.conversation import chat_messages
from gatewayd.http.openai.sampling import tier_of
from gatewayd.http.schema.responses import (
    LOGPROBS,
    AllowedChoice,
    InputTable,
    NamedToolChoice,
    ResponseRequest,
)
from gatewayd_hooks.protocols import Usage

# Longer names first: each is replaced before a shorter one that it begins with.
_NAMES = (
    ("max_completion_tokens", "max_output_tokens"),
    ("response_format.json_schema.schema", "text.format.schema"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("messages", "input"),
)
_TOOL = re.compile(r"\b(tools\[\d+\])\.function\b")


def chat_body(request: ResponseRequest, items: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Build the chat-completion body that generates this response.

    Args:
        request: the request.
        items: items of the conversation.
    """
    wants_logprobs = LOGPROBS in (request.include or ()) or bool(request.top_logprobs)
    body: dict[str, Any] = {
        "model": request.model,
        "max_completion_tokens": request.max_output_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        # Whatever the client asked for: a response is always built from deltas.
        "stream": True,
        "logprobs": wants_logprobs,
        "top_logprobs": request.top_logprobs if wants_logprobs else None,
        "service_tier": request.service_tier,
        "priority": request.priority,
        "cache_salt": request.cache_salt,
        "prompt_cache_key": request.prompt_cache_key,
        "prompt_cache_retention": request.prompt_cache_retention,
    }
    given = {name: value for name, value in body.items() if value is not None}
    return {**given, **input_body(request, items)}


def input_body(request: InputTable, items: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Build the fields of it that determine the prompt.

    Raises:
        InvalidRequest: fields contradict each other.
    """
    body: dict[str, Any] = {
        "messages": chat_messages(request.instructions, items),
        "reasoning_effort": None if request.reasoning is None else request.reasoning.effort,
    }
    if request.tools:
        body["tools"] = [
            {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}
            for tool in request.tools
        ]
        body["tool_choice"] = _tool_choice(request)
        body["parallel_tool_calls"] = request.parallel_tool_calls
    elif request.tool_choice not in (None, "none", "auto"):
        raise InvalidRequest("tool_choice asks for a call; there are no tools", param="tool_choice")
    form = None if request.text is None else request.text.format
    if form is not None and form.type == "json_schema":
        named = {"name": form.name, "schema": form.schema_, "strict": form.strict}
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {key: value for key, value in named.items() if value is not None},
        }
    elif form is not None:
        body["response_format"] = {"type": form.type}
    return {name: value for name, value in body.items() if value is not None}


def _tool_choice(request: InputTable) -> Any:  # noqa: ANN401 - any of chat's forms
    choice = request.tool_choice
    if isinstance(choice, NamedToolChoice):
        return {"type": "function", "function": {"name": choice.name}}
    if isinstance(choice, AllowedChoice):
        tools = [{"type": "function", "function": {"name": tool.name}} for tool in choice.tools]
        allowed = {"mode": choice.mode, "tools": tools}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    return choice


def with_response_fields(error: GatewayError) -> GatewayError:
    """Rename fields in an error from the chat completion's names to those of this route."""
    error.message = _renamed(error.message)
    error.param = None if error.param is None else _renamed(error.param)
    # The exception's own text, which logs show.
    error.args = (error.message,)
    return error


def _renamed(text: str) -> str:
    for theirs, ours in _NAMES:
        text = re.sub(rf"\b{re.escape(theirs)}\b", ours, text)
    return _TOOL.sub(r"\1", text)


def initial_response(request: ResponseRequest, response_id: str, status: str) -> dict[str, Any]:
    """Build the response object at its start."""
    text = {} if request.text is None else request.text.model_dump(exclude_none=True, by_alias=True)
    reasoning = request.reasoning
    choice = request.tool_choice
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": status,
        "background": bool(request.background),
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "model": request.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": reasoning and reasoning.effort, "summary": None},
        "service_tier": tier_of(request) or "default",
        "store": request.store is not False,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": choice if isinstance(choice, str) else _dumped(choice) or "auto",
        "tools": [
            {**tool.model_dump(), "parameters": tool.parameters, "strict": bool(tool.strict)}
            for tool in request.tools or ()
        ],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": request.truncation or "disabled",
        "usage": None,
        "user": request.user,
    }


def _dumped(choice: NamedToolChoice | AllowedChoice | None) -> dict[str, Any] | None:
    return None if choice is None else choice.model_dump()


def completed_response(
    body: dict[str, Any],
    output: Sequence[dict[str, Any]],
    usage: Usage,
    reasoning_tokens: int,
    *,
    is_cut: bool,
) -> dict[str, Any]:
    """Complete the response object with its output.

    Args:
        body: the object at its start.
        output: its items.
        usage: its token usage.
        reasoning_tokens: generated tokens of the reasoning.
        is_cut: whether the token limit ended it.
    """
    return {
        **body,
        "status": "incomplete" if is_cut else "completed",
        "completed_at": None if is_cut else int(time.time()),
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": list(output),
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
    }


def failed_response(body: dict[str, Any], message: str) -> dict[str, Any]:
    """Build the response object of a failed response."""
    return {**body, "status": "failed", "error": {"code": "server_error", "message": message}}
