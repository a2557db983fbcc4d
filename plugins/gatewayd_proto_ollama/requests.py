"""From Ollama's requests to the bodies of chat completions and completions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from gatewayd_hooks.protocols import Refusal

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
"""Options and what they are called in a chat completion."""
_FRACTIONS = frozenset(_OPTIONS) - {"top_k", "seed"}
_COMMON = frozenset(("model", "stream", "options", "format", "think", "logprobs", "top_logprobs"))
_CHAT = _COMMON | {"messages", "tools"}
_GENERATE = _COMMON | {"prompt", "system", "raw", "suffix", "template", "context", "images"}
_MESSAGE = frozenset(
    ("role", "content", "thinking", "images", "tool_calls", "tool_call_id", "tool_name", "name")
)
_MOST_IGNORED = 64
"""Places that are told: each message of a long conversation could have some."""
RENAMED = {ours: f"options.{theirs}" for theirs, ours in _OPTIONS.items()} | {
    "max_tokens": "options.num_predict",
    "stop": "options.stop",
    "response_format": "format",
    "reasoning_effort": "think",
    "enable_thinking": "think",
}
"""Fields of a chat completion and what they are called here."""


class Asked(NamedTuple):
    """A request in the gateway's words.

    Attributes:
        body: of a chat completion, or of a completion where ``is_raw``.
        ignored: fields that are not acted on.
        thinks: whether what was thought is shown.
        is_raw: whether the prompt is the model's, without its template.
        is_load: whether nothing is asked but that the model is there.
        turns: fields that became messages, in their order; empty where messages were sent.
    """

    body: Fields
    ignored: list[str]
    thinks: bool
    is_raw: bool = False
    is_load: bool = False
    turns: tuple[str, ...] = ()


def wrong(place: str, sentence: str, *, code: str = "invalid_value") -> NoReturn:
    """Refuse a field.

    Raises:
        Refusal: always.
    """
    raise Refusal(400, f"{place} {sentence}", param=place, code=code)


def chat_of(fields: Fields, model: str) -> Asked:
    """Read a request of ``/api/chat``.

    Args:
        fields: of the request.
        model: the served name.

    Raises:
        Refusal: a field is wrong; values are the gateway's to check.
    """
    ignored = _ignored(fields, _CHAT)
    body, thinks = _common(fields, model, ignored)
    messages = fields.get("messages")
    if messages is None or messages == []:
        return Asked(body, ignored, thinks, is_load=True)
    body["messages"] = _messages(_list(messages, "messages"), ignored)
    last = body["messages"][-1]
    if last["role"] == "assistant" and not last.get("tool_calls"):
        body["continue_final_message"] = True
    if fields.get("tools"):
        body["tools"] = [_tool(one) for one in _list(fields["tools"], "tools")]
    return Asked(body, ignored, thinks)


def generate_of(fields: Fields, model: str, *, can_chat: bool) -> Asked:
    """Read a request of ``/api/generate``.

    Args:
        fields: of the request.
        model: the served name.
        can_chat: whether the model has a template.

    Raises:
        Refusal: as for a chat, or what it asks for cannot be done.
    """
    for name, reason in (
        ("suffix", "is not supported: the model does not fill in"),
        ("template", "is not supported: the model's own is used; with raw there is none"),
        ("context", "is not supported: use /api/chat and send the messages so far"),
        ("images", "is not supported: this model cannot read images"),
    ):
        if fields.get(name):
            wrong(name, reason, code="unsupported_parameter")
    ignored = _ignored(fields, _GENERATE)
    body, thinks = _common(fields, model, ignored)
    prompt = _text(fields.get("prompt") or "", "prompt")
    if not prompt:
        return Asked(body, ignored, thinks, is_load=True)
    system = _text(fields.get("system") or "", "system")
    if fields.get("raw") or not can_chat:
        if system:
            ignored.append("system")
        body["prompt"] = prompt
        for name in ("enable_thinking", "reasoning_effort"):
            body.pop(name, None)  # said to a template
        top = body.pop("top_logprobs", 0)
        if body.pop("logprobs", False):
            body["logprobs"] = top
        return Asked(body, ignored, thinks, is_raw=True)
    body["messages"] = [
        *([{"role": "system", "content": system}] if system else []),
        {"role": "user", "content": prompt},
    ]
    return Asked(body, ignored, thinks, turns=("system", "prompt") if system else ("prompt",))


def _common(fields: Fields, model: str, ignored: list[str]) -> tuple[Fields, bool]:
    stream = fields.get("stream")
    if stream is not None and not isinstance(stream, bool):
        wrong("stream", "must be true or false")
    body: Fields = {"model": model, "stream": stream is not False}
    for name in ("logprobs", "top_logprobs"):
        if fields.get(name):
            body[name] = fields[name]
    form = fields.get("format")
    if form == "json":
        body["response_format"] = {"type": "json_object"}
    elif isinstance(form, dict):
        named = {"name": "format", "schema": form, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    elif form not in (None, ""):
        wrong("format", 'must be "json" or a JSON schema')
    options = fields.get("options") or {}
    if not isinstance(options, dict):
        wrong("options", "must be an object")
    _add_options(options, body, ignored)
    think = fields.get("think")
    if think is not None and not isinstance(think, bool):
        if think not in ("low", "medium", "high", "max"):
            wrong("think", 'must be true, false, "low", "medium", "high" or "max"')
        body["reasoning_effort"] = think
    if think is not None:
        body["enable_thinking"] = think is not False
    return body, think is not False


def _add_options(options: Mapping[str, Any], body: Fields, ignored: list[str]) -> None:
    for name, value in options.items():
        if value is None:
            continue
        if name not in _FRACTIONS and isinstance(value, float) and value.is_integer():
            value = int(value)  # JSON does not tell 1.0 from 1, nor does Ollama
        if name in _OPTIONS:
            body[_OPTIONS[name]] = _number(value) if name in _FRACTIONS else value
        elif name == "num_predict":
            if not isinstance(value, int) or isinstance(value, bool):
                wrong("options.num_predict", "must be an integer")
            if value > 0:  # else as long as it goes
                body["max_tokens"] = value
        elif name == "stop":
            if value:
                body["stop"] = value
        else:
            ignored.append(f"options.{name}")
    if body.get("top_p") == 0:
        # Ollama's for the most likely token alone.
        body |= {"top_p": 1.0, "top_k": 1}


def _number(value: object) -> object:
    """Whole numbers are fractions too."""
    is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53
    return float(value) if is_whole else value  # type: ignore[arg-type]


def _messages(messages: list[Any], ignored: list[str]) -> list[Fields]:
    found: list[Fields] = []
    calls: list[tuple[str, str]] = []
    """Names and ids of calls that have no result yet."""
    for at, message in enumerate(messages):
        place = f"messages[{at}]"
        if not isinstance(message, dict):
            wrong(place, "must be an object")
        if len(ignored) < _MOST_IGNORED and not message.keys() <= _MESSAGE:
            ignored += [f"{place}.{name}" for name in _ignored(message, _MESSAGE)]
        if message.get("images"):
            wrong(f"{place}.images", "is not supported: this model cannot read images")
        one: Fields = {
            "role": message.get("role"),
            "content": _text(message.get("content") or "", f"{place}.content"),
        }
        if message.get("thinking"):
            one["reasoning_content"] = _text(message["thinking"], f"{place}.thinking")
        if message.get("tool_calls"):
            one["tool_calls"] = _calls(_list(message["tool_calls"], f"{place}.tool_calls"), place)
            calls = [(call["function"]["name"], call["id"]) for call in one["tool_calls"]]
        if message.get("role") == "tool":
            one["tool_call_id"] = _call_id(message, calls)
        found.append(one)
    return found


def _calls(calls: list[Any], place: str) -> list[Fields]:
    found = []
    for at, call in enumerate(calls):
        where = f"{place}.tool_calls[{at}].function"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            wrong(where, "must be an object")
        arguments = function.get("arguments", {})
        if not isinstance(arguments, dict):
            wrong(f"{where}.arguments", "must be an object")
        own = call.get("id")
        found.append(
            {
                "id": own if isinstance(own, str) and own else f"call_{place[9:-1]}_{at}",
                "type": "function",
                "function": {
                    "name": _text(function.get("name"), f"{where}.name"),
                    "arguments": json.dumps(arguments, ensure_ascii=False),
                },
            }
        )
    return found


def _call_id(message: Fields, calls: list[tuple[str, str]]) -> str:
    """Whose result it is: said by id, by name, or by nothing but the order."""
    if isinstance(message.get("tool_call_id"), str) and message["tool_call_id"]:
        return str(message["tool_call_id"])
    name = message.get("tool_name") or message.get("name")
    at = next((i for i, call in enumerate(calls) if call[0] == name), 0)
    return calls.pop(at)[1] if calls else "call_0"


def _tool(tool: object) -> object:
    """Functions are all that there is: some clients do not say so."""
    return {**tool, "type": tool.get("type") or "function"} if isinstance(tool, dict) else tool


def _ignored(fields: Fields, known: frozenset[str]) -> list[str]:
    return [name for name, value in fields.items() if name not in known and value is not None]


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        wrong(place, "must be a string", code="invalid_type")
    return value


def _list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list):
        wrong(place, "must be a list", code="invalid_type")
    return value
