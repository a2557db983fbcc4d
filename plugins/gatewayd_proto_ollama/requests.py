"""Converts Ollama's requests to the bodies of chat completions and completions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gatewayd_hooks.requests.checking import check
from gatewayd_proto_ollama.options import AnswerTable, Options
from gatewayd_proto_ollama.tables import (
    GenerateRequest,
    OllamaChatRequest,
    OllamaMessage,
    OllamaToolCall,
)

Fields = dict[str, Any]

_OPTIONS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "seed",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
"""Options, and their names in a chat completion."""
RENAMED = {ours: f"options.{theirs}" for theirs, ours in _OPTIONS.items()} | {
    "max_tokens": "options.num_predict",
    "stop": "options.stop",
    "response_format": "format",
    "reasoning_effort": "think",
    "enable_thinking": "think",
}
"""Fields of a chat completion, and their names in Ollama's requests."""


class OllamaRequest(NamedTuple):
    """Converted request.

    Attributes:
        body: of a chat completion, or of a completion if ``is_raw``; with the model's name as
            requested.
        ignored: fields without effect.
        thinks: whether reasoning is included in the answer.
        is_raw: whether the prompt is used without the chat template.
        is_load: whether the request only loads the model.
        turns: fields that became messages, in order; empty if messages were sent.
    """

    body: Fields
    ignored: list[str]
    thinks: bool
    is_raw: bool = False
    is_load: bool = False
    turns: tuple[str, ...] = ()


def convert_chat(fields: Fields) -> OllamaRequest:
    """Convert a request of ``/api/chat``.

    Args:
        fields: of the request.

    Raises:
        Refusal: a field is invalid.
    """
    request, ignored = check(OllamaChatRequest, fields)
    body, thinks = _common(request)
    if not request.messages:
        return OllamaRequest(body, ignored, thinks, is_load=True)
    body["messages"] = _messages(request.messages)
    last = body["messages"][-1]
    if last["role"] == "assistant" and not last.get("tool_calls"):
        body["continue_final_message"] = True
    if request.tools:
        # Functions are the only type: some clients omit it.
        body["tools"] = [
            {"type": "function", "function": tool.function.model_dump(exclude_unset=True)}
            for tool in request.tools
        ]
    return OllamaRequest(body, ignored, thinks)


def convert_generate(fields: Fields, can_chat: Callable[[str], bool]) -> OllamaRequest:
    """Convert a request of ``/api/generate``.

    Args:
        fields: of the request.
        can_chat: returns whether a model has a chat template.

    Raises:
        Refusal: a field is invalid.
    """
    request, ignored = check(GenerateRequest, fields)
    body, thinks = _common(request)
    if not request.prompt:
        return OllamaRequest(body, ignored, thinks, is_load=True)
    if request.raw or not can_chat(request.model):
        if request.system:
            ignored.append("system")
        body["prompt"] = request.prompt
        for name in ("enable_thinking", "reasoning_effort"):
            body.pop(name, None)  # only for a template
        top = body.pop("top_logprobs", 0)
        # In a text completion `logprobs` is the number of alternatives.
        if body.pop("logprobs", False):
            body["logprobs"] = top
        return OllamaRequest(body, ignored, thinks, is_raw=True)
    user = {"role": "user", "content": request.prompt}
    if not request.system:
        return OllamaRequest({**body, "messages": [user]}, ignored, thinks, turns=("prompt",))
    body["messages"] = [{"role": "system", "content": request.system}, user]
    return OllamaRequest(body, ignored, thinks, turns=("system", "prompt"))


def _common(request: AnswerTable) -> tuple[Fields, bool]:
    body: Fields = {"model": request.model, "stream": request.stream is not False}
    if request.logprobs:
        body["logprobs"] = True
    if request.top_logprobs:
        body["top_logprobs"] = request.top_logprobs
    if request.format == "json":
        body["response_format"] = {"type": "json_object"}
    elif request.format is not None:
        named = {"name": "format", "schema": request.format, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    if request.options is not None:
        _add_options(request.options, body)
    if request.think is not None:
        if not isinstance(request.think, bool):
            body["reasoning_effort"] = request.think
        body["enable_thinking"] = request.think is not False
    return body, request.think is not False


def _add_options(options: Options, body: Fields) -> None:
    for theirs, ours in _OPTIONS.items():
        if (value := getattr(options, theirs)) is not None:
            body[ours] = value
    if options.num_predict is not None and options.num_predict > 0:  # otherwise unlimited
        body["max_tokens"] = options.num_predict
    if options.stop is not None:
        body["stop"] = options.stop


def _messages(messages: Sequence[OllamaMessage]) -> list[Fields]:
    found: list[Fields] = []
    calls: list[tuple[str, str]] = []
    """Names and ids of calls that have no result yet."""
    for at, message in enumerate(messages):
        one: Fields = {"role": message.role, "content": message.content or ""}
        if message.thinking:
            one["reasoning_content"] = message.thinking
        if message.tool_calls:
            one["tool_calls"] = _calls(message.tool_calls, at)
            calls = [(call["function"]["name"], call["id"]) for call in one["tool_calls"]]
        if message.role == "tool":
            one["tool_call_id"] = _call_id(message, calls)
        found.append(one)
    return found


def _calls(calls: Sequence[OllamaToolCall], message: int) -> list[Fields]:
    return [
        {
            # Ollama's clients need not send ids, which chat completions require.
            "id": call.id or f"call_{message}_{at}",
            "type": "function",
            "function": {
                "name": call.function.name,
                "arguments": json.dumps(call.function.arguments, ensure_ascii=False),
            },
        }
        for at, call in enumerate(calls)
    ]


def _call_id(message: OllamaMessage, calls: list[tuple[str, str]]) -> str:
    """Return the id of the tool call that a result answers: by id, by name, or by order."""
    if message.tool_call_id:
        return message.tool_call_id
    name = message.tool_name or message.name
    at = next((i for i, call in enumerate(calls) if call[0] == name), 0)
    return calls.pop(at)[1] if calls else "call_0"
