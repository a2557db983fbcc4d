"""Input tokens of a response: counted without an answer."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from gatewayd.http.openai.chat_prompt import most_counted
from tests.gatewayd.fake_fleet import CONTEXT
from tests.gatewayd.gateway import Gateway
from tests.gatewayd.responses_gateway import ask

TURNS: list[Any] = [
    {"role": "user", "content": "what is in /?"},
    {
        "role": "assistant",
        "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
    },
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"path": "/"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "a file"},
]


async def counted(gateway: Gateway, **fields: Any) -> int:
    found = await gateway.openai.responses.input_tokens.count(**fields)
    assert found.object == "response.input_tokens"
    return found.input_tokens


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "hi"},
        {"input": TURNS, "instructions": "Be brief."},
        {
            "input": "hi",
            "text": {"format": {"type": "json_object"}},
            "reasoning": {"effort": "low"},
        },
    ],
)
async def test_the_count_is_what_an_answer_is_charged(gateway: Gateway, fields: Any) -> None:
    made = await ask(gateway, **fields)
    assert made.usage is not None
    assert made.usage.input_tokens > 0
    assert await counted(gateway, model="nano", **fields) == made.usage.input_tokens
    assert await counted(gateway, **fields) == made.usage.input_tokens  # of the first model
    assert len(gateway.fleet.jobs) == 1


async def test_what_is_stored_before_counts_too(gateway: Gateway) -> None:
    first = await ask(gateway, input="one")
    second = await ask(gateway, input="two", previous_response_id=first.id)
    assert second.usage is not None
    found = await counted(gateway, input="two", previous_response_id=first.id)
    assert found == second.usage.input_tokens
    with pytest.raises(openai.NotFoundError) as caught:
        await counted(gateway, previous_response_id="resp_none")
    assert caught.value.param == "previous_response_id"


async def test_more_than_the_context_is_counted_or_cut_as_an_answer_would(
    gateway: Gateway,
) -> None:
    turns: list[Any] = [{"role": "user", "content": f"turn {n} " + "word " * 30} for n in range(90)]
    assert await counted(gateway, input=turns) > CONTEXT
    made = await ask(gateway, input=turns, truncation="auto")
    assert made.usage is not None
    found = await counted(gateway, input=turns, truncation="auto")
    assert found == made.usage.input_tokens < CONTEXT


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": "x", "model": "other"}, "model"),
        ({"input": "x", "conversation": "conv_1"}, "conversation"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice"),
        ({"input": [{"role": "user", "content": "a" * (most_counted(CONTEXT) + 1)}]}, "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
    ],
)
async def test_what_cannot_be_counted_is_refused(gateway: Gateway, fields: Any, param: str) -> None:
    answer = await gateway.http.post("/v1/responses/input_tokens", json=fields)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"].startswith(param)
