"""Response items: conversion to and from chat."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from gatewayd.http.openai.conversation import chat_messages
from gatewayd.http.schema.responses import InputItem
from gatewayd.resources.responses.items import stored_items
from gatewayd.resources.responses.output import Output
from gatewayd_hooks.parsing import Arguments, Part, Reasoning, Text, ToolCall

STRICT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}


def test_what_an_assistant_thinks_says_and_calls_is_one_message() -> None:
    given = [
        InputItem.model_validate(one)
        for one in [
            {"role": "user", "content": "q"},
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "t"}],
            },
            {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
            CALL,
            {**CALL, "call_id": "c2"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
            {
                "type": "function_call_output",
                "call_id": "c2",
                "output": [{"type": "input_text", "text": "2"}],
            },
            {"role": "assistant", "content": "b"},
            {"role": "assistant", "content": "c"},
        ]
    ]
    function = {"name": "f", "arguments": "{}"}
    assert chat_messages("s", stored_items(given)) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "reasoning": "t",
            "content": "a",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": function},
                {"id": "c2", "type": "function", "function": function},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]


def test_what_an_assistant_refused_is_what_it_said() -> None:
    parts = [{"type": "refusal", "refusal": "I will not."}]
    item = InputItem.model_validate({"role": "assistant", "content": parts})
    (shown,) = stored_items([item])
    assert shown["content"] == parts
    assert chat_messages(None, [shown]) == [{"role": "assistant", "content": "I will not."}]


def told(parts: list[Part], status: str = "completed") -> tuple[list[dict[str, Any]], Output]:
    output = Output()
    events: list[dict[str, Any]] = []
    for part in parts:
        events += [json.loads(json.dumps(event)) for event in output.add_parts([part], [])]
    events += [json.loads(json.dumps(event)) for event in output.end(status)]
    return events, output


def test_reasoning_text_and_calls_are_items_with_their_events() -> None:
    events, output = told(
        [
            Reasoning("let me "),
            Reasoning("see"),
            Text("\n"),
            Text("well"),
            Text("\n"),
            ToolCall(0, "f"),
            Arguments(0, '{"a":'),
            Arguments(0, "1}"),
            Text("\n"),
            ToolCall(1, "g"),
            Arguments(1, "{}"),
        ]
    )
    for number, event in enumerate(events):
        STRICT.validate_python({**event, "sequence_number": number})
    assert [event["type"].removeprefix("response.") for event in events] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    kinds = [item["type"] for item in output.items]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    assert [item["arguments"] for item in output.items[2:]] == ['{"a":1}', "{}"]
    assert {item["status"] for item in output.items} == {"completed"}
    indexes = [event["output_index"] for event in events]
    assert indexes == sorted(indexes)


def test_items_are_told_again_as_they_were() -> None:
    _, output = told(
        [Reasoning("a"), Reasoning("b"), Text("c"), Text("d"), ToolCall(0, "f"), Arguments(0, "{}")]
    )
    empty = told([], "incomplete")[1].items
    for items in (output.items, empty):
        again, events = Output(), list[dict[str, Any]]()
        for item in items:
            found = again.replay(item, None, is_broken=False)
            events += [json.loads(json.dumps(event)) for event in found]
        assert again.items == items
        for number, event in enumerate(events):
            STRICT.validate_python({**event, "sequence_number": number})
        done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
        assert done == items
        added = [one["item"] for one in events if one["type"] == "response.output_item.added"]
        assert {one["status"] for one in added} == {"in_progress"}
        assert all(not one.get("content") and not one.get("arguments") for one in added)


def recorded(events: Iterable[dict[str, Any]]) -> list[str]:
    """As they are sent: what they hold goes on changing."""
    return [json.dumps(event) for event in events]


@pytest.mark.parametrize("end", ["completed", "incomplete", None])
@pytest.mark.parametrize(
    "parts",
    [
        [],
        [Text(" "), Text("\n")],
        [Text(" "), Text("a"), Text(""), Text("bcd"), Text("\U0001f469 e")],
        [Reasoning("a"), Reasoning("bc"), Text("\n"), Text("d"), Text("ef")],
        [Text("x"), ToolCall(0, "f"), Arguments(0, "{"), Arguments(0, "}"), ToolCall(1, "g")],
    ],
)
def test_an_answer_is_told_again_by_the_same_events(parts: list[Part], end: str | None) -> None:
    output, first = Output(), list[str]()
    for at, part in enumerate(parts):
        scored = [{"token": part.text, "at": at}] if isinstance(part, Text) else []
        first += recorded(output.add_parts([part], scored * (at % 3)))
    if end is None:
        output.leave_incomplete()
    else:
        first += recorded(output.end(end))
    items = json.loads(json.dumps(output.items))
    cuts = json.loads(json.dumps(output.cuts))
    again, second = Output(), list[str]()
    for at, (item, cut) in enumerate(zip(items, cuts, strict=True)):
        is_broken = output.is_broken and at == len(items) - 1
        second += recorded(again.replay(item, cut, is_broken=is_broken))
    assert second == first
    assert again.items == items


def test_a_long_answer_is_not_copied_with_each_piece() -> None:
    """Added to piece by piece, its text would be copied 150,000 times: 180 GB, 40 seconds."""
    output = Output()
    began = time.process_time()
    for _ in range(150_000):
        for _ in output.add_parts([Text("sixteen letters ")], []):
            pass
    seconds = time.process_time() - began
    list(output.end("completed"))
    assert len(output.items[0]["content"][0]["text"]) == 16 * 150_000
    assert seconds < 3


def test_an_id_that_comes_twice_is_given_once() -> None:
    one = InputItem.model_validate({"role": "user", "content": "q", "id": "same"})
    ids = [item["id"] for item in stored_items([one, one, one])]
    assert ids[0] == "same"
    assert len(set(ids)) == 3


def test_an_answer_without_words_is_an_empty_message() -> None:
    events, output = told([], "incomplete")
    (item,) = output.items
    assert (item["content"][0]["text"], item["status"]) == ("", "incomplete")
    assert len(events) == 5
