"""Token counting: rendered prompts with tools, beyond the context, through other protocols."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gatewayd.http.openai.chat_prompt import most_counted
from gatewayd.text.text_model import TextModel
from gatewayd_engine.offline.train.chats import LOOKUP
from gatewayd_proto_anthropic.strategy import Anthropic
from tests.gatewayd.fake_fleet import CONTEXT, FakeFleet, says
from tests.gatewayd.gateway import CHAT, Gateway, running
from tests.gatewayd.http.openai.fake_parsers import parsers

TOOLS: Any = [LOOKUP]
CALLS: list[Any] = [
    {"role": "user", "content": "what is os?"},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "lookup", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": "a module"},
]
LONG = [{"role": "user", "content": "word " * 2 * CONTEXT}]


@pytest.fixture
async def gateway(text: TextModel) -> AsyncIterator[Gateway]:
    served: Any = [("anthropic", Anthropic())]
    async with running(
        text, FakeFleet(says([100])), parsers=parsers(), protocols=served
    ) as gateway:
        yield gateway


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": TOOLS},
        {"tools": TOOLS, "messages": CALLS},
        {"tools": TOOLS, "tool_choice": "none"},
        {
            "messages": [*CHAT["messages"], {"role": "assistant", "content": "So"}],
            "continue_final_message": True,
        },
    ],
)
async def test_a_conversation_is_tokenized_as_its_chat_is(gateway: Gateway, fields: Any) -> None:
    body = {**CHAT, **fields}
    shown = await gateway.http.post("/tokenize", json=body)
    await gateway.http.post("/v1/chat/completions", json=body)
    (job,) = gateway.fleet.jobs
    assert shown.json()["tokens"] == list(job.request.prompt)
    assert shown.json()["count"] == len(job.request.prompt)


async def test_tools_of_a_conversation_are_counted(gateway: Gateway) -> None:
    counts = [
        (await gateway.http.post("/tokenize", json={**CHAT, **fields})).json()["count"]
        for fields in ({}, {"tools": TOOLS})
    ]
    assert counts[0] < counts[1]


async def test_of_tools_no_more_is_counted_than_of_text(gateway: Gateway) -> None:
    function = {"name": "f", "parameters": {"description": "x" * most_counted(CONTEXT)}}
    body = {**CHAT, "tools": [{"type": "function", "function": function}]}
    answer = await gateway.http.post("/tokenize", json=body)
    assert answer.status_code == 400
    assert f"the maximum is {most_counted(CONTEXT)}" in answer.json()["error"]["message"]


async def test_anthropic_counts_what_is_beyond_the_context(gateway: Gateway) -> None:
    body = {"model": "nano", "messages": LONG}
    counted = await gateway.http.post("/v1/messages/count_tokens", json=body)
    shown = await gateway.http.post("/tokenize", json=body)
    assert counted.status_code == 200
    assert counted.json() == {"input_tokens": shown.json()["count"]}
    assert counted.json()["input_tokens"] > CONTEXT
    answer = await gateway.http.post("/v1/messages", json={**body, "max_tokens": 4})
    assert answer.status_code == 400


def assistants(content: Any, **fields: Any) -> list[Any]:
    return [*CHAT["messages"], {"role": "assistant", "content": content, **fields}]


@pytest.mark.parametrize(
    ("content", "fields", "words"),
    [
        ([{"type": "refusal", "refusal": "I will not."}], {}, "I will not."),
        (
            [{"type": "text", "text": "No. "}, {"type": "refusal", "refusal": "Never."}],
            {},
            "No. Never.",
        ),
        (None, {"refusal": "I will not."}, "I will not."),
        ("As said.", {"refusal": None}, "As said."),
        ([{"type": "output_text", "text": "Yes."}], {}, "Yes."),
    ],
)
async def test_what_an_assistant_refused_is_what_it_said(
    gateway: Gateway, content: Any, fields: Any, words: str
) -> None:
    for messages in (assistants(content, **fields), assistants(words)):
        answer = await gateway.http.post(
            "/v1/chat/completions",
            json={**CHAT, "messages": [*messages, {"role": "user", "content": "why?"}]},
        )
        assert answer.status_code == 200
    mine, theirs = [job.request.prompt for job in gateway.fleet.jobs]
    assert mine == theirs


@pytest.mark.parametrize(
    ("message", "param", "words"),
    [
        ({"role": "user", "content": [{"type": "text"}]}, "content[0].text", "is required"),
        (
            {"role": "assistant", "content": [{"type": "refusal", "text": "x"}]},
            "content[0].refusal",
            "is required",
        ),
        (
            {"role": "user", "content": [{"type": "refusal", "refusal": "x"}]},
            "content[0]",
            "is allowed for role assistant only, the role is user",
        ),
        (
            {"role": "user", "content": "x", "refusal": "x"},
            "refusal",
            "is allowed for role assistant only",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
            "content[0].type",
            'is "image_url", which this model cannot read: send text',
        ),
    ],
)
async def test_parts_that_cannot_be_read_are_named(
    gateway: Gateway, message: Any, param: str, words: str
) -> None:
    answer = await gateway.http.post("/v1/chat/completions", json={**CHAT, "messages": [message]})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == f"messages[0].{param}"
    assert words in error["message"]
