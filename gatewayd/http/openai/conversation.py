"""Conversion of conversations to the chat template's messages and arguments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gatewayd.errors import InvalidRequest
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.messages import ChatMessage
from gatewayd.plugins.parsers import ModelParsers
from gatewayd.text.template import RESERVED, ChatTemplate
from gatewayd_hooks.requests.num_values import MOST_VALUES, num_values


def for_template(messages: Sequence[ChatMessage], parsers: ModelParsers) -> list[dict[str, Any]]:
    """Validate messages across fields and convert them to the chat template's format.

    Raises:
        InvalidRequest: a message lacks a field that its role requires, or has one it must not have.
    """
    # Before any arguments are decoded.
    _check_arguments(messages)
    shown = []
    for at, message in enumerate(messages):
        fault = message.fault
        if fault is not None:
            path = f"messages[{at}].{fault.field}"
            what = f"{path} {fault.what}"
            if fault.is_missing:
                raise InvalidRequest(what, param=path, code="missing_required_parameter")
            raise InvalidRequest(what, param=path)
        one = message.for_template()
        # Calls and their outputs get the same form of id, as the template requires.
        if "tool_call_id" in one:
            one["tool_call_id"] = parsers.call_id(one["tool_call_id"])
        for call in one.get("tool_calls", ()):
            call["id"] = parsers.call_id(call["id"])
        shown.append(one)
    return shown


def chat_messages(
    instructions: str | None, items: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Convert items in the format of stored responses to chat messages.

    Reasoning, text and calls of an assistant's turn become one message.
    """
    turns: list[dict[str, Any]] = []
    if instructions is not None:
        turns.append({"role": "system", "content": instructions})
    for item in items:
        match item["type"]:
            case "message" if item["role"] != "assistant":
                turns.append({"role": item["role"], "content": _text(item["content"])})
            case "message":
                turn = _assistant(turns, "content", "tool_calls")
                turn["content"] = _text(item["content"])
            case "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                call = {"id": item["call_id"], "type": "function", "function": function}
                _assistant(turns).setdefault("tool_calls", []).append(call)
            case "function_call_output":
                output = item["output"]
                text = output if isinstance(output, str) else _text(output)
                turns.append({"role": "tool", "tool_call_id": item["call_id"], "content": text})
            case _:
                thought = _text(item.get("content") or item["summary"])
                if thought:
                    _assistant(turns, "reasoning", "content", "tool_calls")["reasoning"] = thought
    return [_complete(turn) for turn in turns]


def _assistant(turns: list[dict[str, Any]], *unless: str) -> dict[str, Any]:
    """Return the assistant's current turn; a new one if it already has any of these fields."""
    is_over = not turns or turns[-1]["role"] != "assistant"
    if is_over or any(name in turns[-1] for name in unless):
        turns.append({"role": "assistant"})
    return turns[-1]


def _complete(turn: dict[str, Any]) -> dict[str, Any]:
    """Add empty content to a turn that has reasoning only."""
    if turn["role"] == "assistant" and "content" not in turn and "tool_calls" not in turn:
        return {**turn, "content": ""}
    return turn


def _text(parts: Sequence[dict[str, Any]]) -> str:
    return "".join(part.get("text") or part.get("refusal") or "" for part in parts)


def _check_arguments(messages: Sequence[ChatMessage]) -> None:
    """Limit the values in calls' arguments, as decoded JSON can take a hundred times its bytes.

    Raises:
        InvalidRequest: the arguments of all calls have too many values.
    """
    texts = [text for message in messages for text in message.argument_texts]
    # A text has no more values than characters.
    if sum(map(len, texts)) <= MOST_VALUES:
        return
    # Lone surrogates, from JSON escapes, must not raise an error here.
    if sum([num_values(text.encode(errors="surrogatepass")) for text in texts]) > MOST_VALUES:
        raise InvalidRequest(
            f"the arguments of all calls have more than {MOST_VALUES} lists, objects and strings, "
            "which is the maximum: leave out older messages",
            param="messages",
        )


def continued_of(request: ChatRequest) -> str | None:
    """Return the text of the final message if it is to be continued, or None.

    Raises:
        InvalidRequest: it cannot be continued, or a generation prompt is requested as well.
    """
    if not request.continue_final_message:
        if request.echo:
            raise InvalidRequest("echo needs continue_final_message to be true", param="echo")
        return None
    last = request.messages[-1]
    if last.role != "assistant" or not last.text or last.tool_calls or last.function_call:
        raise InvalidRequest(
            "continue_final_message needs the last message to be an assistant's, with a text and "
            "no calls",
            param="continue_final_message",
        )
    if request.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message needs add_generation_prompt to be false",
            param="add_generation_prompt",
        )
    return last.text


class TemplateArguments(NamedTuple):
    """Arguments of a request for the chat template.

    Attributes:
        taken: by name, those that the template uses.
        ignored: fields whose arguments the template does not use.
    """

    taken: dict[str, Any]
    ignored: list[str]


def arguments_of(request: ChatRequest, template: ChatTemplate | None) -> TemplateArguments:
    """Collect the template's arguments; ``chat_template_kwargs`` takes precedence.

    Raises:
        InvalidRequest: an argument is reserved for the gateway.
    """
    wishes: dict[str, tuple[str, Any]] = {}
    if request.reasoning_effort is not None:
        wishes["reasoning_effort"] = ("reasoning_effort", request.reasoning_effort)
        if request.reasoning_effort == "none":
            wishes["enable_thinking"] = ("reasoning_effort", False)
    if request.enable_thinking is not None:
        wishes["enable_thinking"] = ("enable_thinking", request.enable_thinking)
    # Last, as it overrides the other fields.
    for name, value in (request.chat_template_kwargs or {}).items():
        field = f"chat_template_kwargs.{name}"
        if name in RESERVED or name.endswith("_token"):
            raise InvalidRequest(f"{field} is reserved for the gateway: omit it", param=field)
        wishes[name] = (field, value)
    if not wishes:
        return _NOTHING
    taken = {
        name: value
        for name, (_, value) in wishes.items()
        if template is not None and template.uses_variable(name)
    }
    # `reasoning_effort` may set two variables: one that is used is enough.
    heard = {field for name, (field, _) in wishes.items() if name in taken}
    ignored = dict.fromkeys(field for field, _ in wishes.values() if field not in heard)
    return TemplateArguments(taken, list(ignored))


_NOTHING = TemplateArguments({}, [])
