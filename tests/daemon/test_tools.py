"""Tool calls: a full round trip of openai's client with the embedded model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from gatewayd_engine.offline.train.chats import LOOKUP
from tests.daemon.conftest import Running, nano_daemon

QUESTION: Any = [{"role": "user", "content": "Look up shutil.copytree."}]
TOOLS: Any = [LOOKUP]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "town": {"type": "string", "maxLength": 12},
                "unit": {"enum": ["c", "f"]},
            },
            "required": ["town", "unit"],
            "additionalProperties": False,
        },
    },
}
BOTH: list[Any] = [LOOKUP, WEATHER]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in BOTH}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The embedded model, for all tests here."""
    folder = tmp_path_factory.mktemp("tools")
    with nano_daemon(folder, XDG_STATE_HOME=str(folder)) as running:
        yield running


@pytest.fixture
def client(daemon: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{daemon.url}/v1", api_key="none", max_retries=0, timeout=60
    ) as client:
        yield client


def test_a_question_becomes_a_call_and_its_result_an_answer(client: openai.OpenAI) -> None:
    asked = client.chat.completions.create(
        model="nano", messages=QUESTION, tools=TOOLS, temperature=0, max_tokens=64
    )

    (choice,) = asked.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert call.id.startswith("call_")
    assert call.function.name == "lookup"
    assert json.loads(call.function.arguments) == {"symbol": "shutil.copytree"}

    result = {"role": "tool", "tool_call_id": call.id, "content": "copytree(src, dst)"}
    messages: Any = [*QUESTION, choice.message.model_dump(), result]
    answered = client.chat.completions.create(
        model="nano",
        messages=messages,
        tools=TOOLS,
        temperature=0,
        max_tokens=32,
    )
    assert answered.choices[0].message.content
    assert answered.choices[0].message.tool_calls is None


def test_a_stream_accumulates_to_the_same_call(client: openai.OpenAI) -> None:
    asked = client.chat.completions.create(
        model="nano", messages=QUESTION, tools=TOOLS, temperature=0, max_tokens=64
    )
    with client.chat.completions.stream(
        model="nano",
        messages=QUESTION,
        tools=TOOLS,
        temperature=0,
        max_tokens=64,
        stream_options={"include_usage": True},
    ) as stream:
        pieces = [
            event.arguments_delta
            for event in stream
            if event.type == "tool_calls.function.arguments.delta"
        ]
        final = stream.get_final_completion()

    (told,) = asked.choices[0].message.tool_calls or []
    (call,) = final.choices[0].message.tool_calls or []
    assert call.type == told.type == "function"
    assert (call.function.name, call.function.arguments) == (
        told.function.name,
        told.function.arguments,
    )
    assert final.choices[0].finish_reason == "tool_calls"
    assert not final.choices[0].message.content
    assert "".join(pieces) == call.function.arguments
    assert len(pieces) > 2, "arguments came at once"
    assert final.usage is not None
    assert asked.usage is not None
    # The prompt may be cached by then.
    uncounted = {"prompt_tokens_details": None}
    assert final.usage.model_copy(update=uncounted) == asked.usage.model_copy(update=uncounted)


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_what_is_required_fits_its_schema(client: openai.OpenAI, count: int) -> None:
    choices: list[Any] = [
        "required",
        {"type": "function", "function": {"name": "get_weather"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": "lookup"}}],
            },
        },
    ]
    for seed in range(0, count, 4):
        answer = client.chat.completions.create(
            model="nano",
            messages=[{"role": "user", "content": "Hello!"}],
            tools=[*TOOLS, WEATHER],
            tool_choice=choices[seed // 4 % 3],
            parallel_tool_calls=False,
            temperature=1.5,
            n=4,
            seed=seed,
            max_tokens=600,
        )
        for choice in answer.choices:
            (call,) = choice.message.tool_calls or []
            assert call.type == "function"
            if choice.finish_reason == "length":
                continue
            assert choice.finish_reason == "tool_calls"
            jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
            if seed // 4 % 3:
                assert call.function.name == ("get_weather", "lookup")[seed // 4 % 3 - 1]


def test_strict_tools_are_kept_to_their_schemas_once_a_call_begins(client: openai.OpenAI) -> None:
    strict: Any = json.loads(json.dumps(LOOKUP))
    strict["function"] |= {"strict": True}
    schema = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}
    strict["function"]["parameters"] = schema | {"additionalProperties": False}
    answer = client.chat.completions.create(
        model="nano", messages=QUESTION, tools=[strict], temperature=0, max_tokens=100
    )
    calls = answer.choices[0].message.tool_calls or []
    assert calls, answer
    for call in calls:
        assert call.type == "function"
        jsonschema.validate(json.loads(call.function.arguments), schema)


def test_a_schema_that_cannot_be_kept_is_refused_in_time(client: openai.OpenAI) -> None:
    bad: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "strange"}}}
    with pytest.raises(openai.BadRequestError, match=r"tools\[0\]\.function\.parameters"):
        client.chat.completions.create(
            model="nano", messages=QUESTION, tools=[bad], tool_choice="required"
        )
