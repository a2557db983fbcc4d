"""Prompts of decisions: the input as a conversation, with each question as its ending."""

from __future__ import annotations

import json
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any, NamedTuple

from gatewayd.errors import InvalidRequest
from gatewayd.http.openai.conversation import chat_messages, for_template
from gatewayd.http.schema.decisions import (
    ChoiceQuestion,
    DecisionItem,
    DecisionPart,
    Predicate,
    ScoreQuestion,
)
from gatewayd.http.schema.messages import ChatMessage
from gatewayd.plugins.parsers import ModelParsers

_MAX_JSON_BYTES = 256 * 1024
_MAX_JSON_LEVELS = 32
_MAX_JSON_VALUES = 10_000


class DecisionPrompt(NamedTuple):
    """Prompt of one question.

    Attributes:
        ending: text of the question, at the end of the prompt.
        labels: possible answers of the model, in the order of the choices or levels.
    """

    ending: str
    labels: list[str]


def conversation(
    given: str | Sequence[DecisionItem], parsers: ModelParsers, *, shows_calls: bool
) -> list[dict[str, Any]]:
    """Convert the input to messages for the chat template.

    Args:
        given: the input.
        parsers: of the model.
        shows_calls: whether the chat template renders tool calls; else they are written as text.

    Raises:
        InvalidRequest: an item lacks a required field, refers to an unknown call, or is an image.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    names: dict[str, str] = {}
    items = []
    for at, item in enumerate(given):
        path = f"input[{at}]"
        if (missing := item.missing) is not None:
            raise InvalidRequest(
                f"{path}.{missing} is required where the type is {item.type}",
                param=f"{path}.{missing}",
                code="missing_required_parameter",
            )
        items.append(_item(item, names, path, shows_calls=shows_calls))
    turns = [ChatMessage.model_validate(turn) for turn in chat_messages(None, items)]
    return for_template(turns, parsers)


def _item(
    item: DecisionItem, names: dict[str, str], path: str, *, shows_calls: bool
) -> dict[str, Any]:
    """Convert an item to the format of stored responses."""
    if item.type == "message":
        return _message(item.role or "user", _text(item.content, f"{path}.content"))
    call_id = item.call_id or ""
    if item.type in ("function_call", "custom_tool_call"):
        arguments = item.arguments
        if arguments is None:
            # Input of a custom tool is free text, but templates expect an object.
            arguments = json.dumps({"input": item.input}, ensure_ascii=False)
        names[call_id] = item.name or ""
        if not shows_calls:
            return _message("assistant", f"{item.name}({item.arguments or item.input})")
        call = {"call_id": call_id, "name": item.name, "arguments": arguments}
        return {"type": "function_call", **call}
    if call_id not in names:
        raise InvalidRequest(
            f"{path}.call_id is {call_id[:64]!r}; no call before it has this id",
            param=f"{path}.call_id",
        )
    output = _text(item.output, f"{path}.output")
    if not shows_calls:
        return _message("user", f"{names[call_id]} gave: {output}")
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def _message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"text": text}]}


def _text(content: str | Sequence[DecisionPart] | None, path: str) -> str:
    """Join parts as one text, one part per line."""
    if isinstance(content, str):
        return content
    return "\n".join(_part(part, f"{path}[{at}]") for at, part in enumerate(content or ()))


def _part(part: DecisionPart, path: str) -> str:
    if part.type == "input_image":
        raise InvalidRequest(
            f"{path} is an image; this model reads text alone",
            param=path,
            code="unsupported_parameter",
        )
    field = {"input_json": "data", "refusal": "refusal"}.get(part.type, "text")
    value = getattr(part, field)
    if value is None:
        raise InvalidRequest(
            f"{path}.{field} is required where the type is {part.type}",
            param=f"{path}.{field}",
            code="missing_required_parameter",
        )
    return value if isinstance(value, str) else _json(value, f"{path}.data")


def _json(value: object, path: str) -> str:
    levels, count = _extent(value)
    shown = ""
    if levels <= _MAX_JSON_LEVELS and count <= _MAX_JSON_VALUES:
        shown = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if len(shown.encode()) <= _MAX_JSON_BYTES:
            return shown
    raise InvalidRequest(
        f"{path} has {levels} levels and {count} values"
        + (f" in {len(shown.encode())} bytes" if shown else "")
        + f"; the maxima are {_MAX_JSON_LEVELS}, {_MAX_JSON_VALUES} and {_MAX_JSON_BYTES}",
        param=path,
    )


def _extent(value: object) -> tuple[int, int]:
    """Return the nesting depth of a value and the number of values in it."""
    levels = count = 0
    # Level by level, without recursion: values may be nested deeply.
    row: list[object] = [value]
    while row:
        levels += any(isinstance(one, dict | list) for one in row)
        count += len(row)
        inner: list[object] = []
        for one in row:
            inner += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        row = inner
    return levels, count


def decision_prompt(
    question: Predicate | ChoiceQuestion | ScoreQuestion, at: int
) -> DecisionPrompt:
    """Build the prompt of a question; all prompts start with the same words.

    Choices are labelled with letters and levels with numbers of equal length, so that no label is
    a prefix of another and none is more likely because it is shorter.

    Raises:
        InvalidRequest: there are no instructions, or two choices are equal.
    """
    path = f"questions[{at}]"
    instructions = _text(question.instructions, f"{path}.instructions").strip()
    if not instructions:
        raise InvalidRequest(
            f"{path}.instructions is empty; it needs at least 1 character",
            param=f"{path}.instructions",
        )
    if isinstance(question, Predicate):
        ending = (
            f"Question: is this statement about the above true? {instructions}\n\n"
            "Answer with one word, yes or no."
        )
        return DecisionPrompt(ending, ["yes", "no"])
    if isinstance(question, ChoiceQuestion):
        seen: set[tuple[bool, str | bool]] = set()
        rows = []
        for place, choice in enumerate(question.choices):
            key = (isinstance(choice.value, bool), choice.value)
            if key in seen:
                raise InvalidRequest(
                    f"{path}.choices[{place}].value is given twice; choices must be distinct",
                    param=f"{path}.choices[{place}].value",
                )
            seen.add(key)
            rows.append((json.dumps(choice.value, ensure_ascii=False), choice.description))
        labels = _letters(len(rows))
        what = "the letter of one choice" if len(rows) <= 26 else "the letters of one choice"
    else:
        rows = [(level.label, level.description) for level in question.levels]
        width = len(str(len(rows) - 1))
        labels = [str(value).zfill(width) for value in range(len(rows))]
        what = "the number of one level"
    lines = [
        f"{label}. {name}" + (f": {description}" if description else "")
        for label, (name, description) in zip(labels, rows, strict=True)
    ]
    listed = "\n".join(lines)
    return DecisionPrompt(
        f"Question: {instructions}\n\n{listed}\n\nAnswer with {what} and nothing else.", labels
    )


def _letters(count: int) -> list[str]:
    """Return the labels A, B, ... or, for more than 26, AA, AB, ..."""
    if count <= len(ascii_uppercase):
        return list(ascii_uppercase[:count])
    return [one + other for one in ascii_uppercase for other in ascii_uppercase][:count]
