"""Unknown nested fields: named like unknown top-level ones."""

from __future__ import annotations

from typing import Any

import pytest

from gatewayd.http.parse import check
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.responses import ResponseRequest
from gatewayd.text.text_model import TextModel
from gatewayd_hooks.requests.tables import RequestTable
from gatewayd_hooks.requests.unserved import MOST_INNER
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, running

_USER = {"role": "user", "content": "a"}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"strange": 1}}}
_RESPONSE = {"model": "nano", "input": "a"}


@pytest.mark.parametrize(
    ("table", "fields", "named"),
    [
        (ChatRequest, {"messages": [_USER, {**_USER, "prefix": True}]}, ["messages[1].prefix"]),
        (ChatRequest, {"messages": [{**_USER, "audio": None, "annotations": []}]}, []),
        (
            ChatRequest,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "lang": 1}]}]},
            ["messages[0].content[0].lang"],
        ),
        (
            ChatRequest,
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"z": 1}}}},
            [],
        ),
        (
            ChatRequest,
            {"response_format": {"type": "json_schema", "zz": 1, "json_schema": {"depth": 1}}},
            ["response_format.zz", "response_format.json_schema.depth"],
        ),
        (
            ChatRequest,
            {"structured_outputs": {"json": {}, "zzz": 1}, "seeed": 1},
            ["seeed", "structured_outputs.zzz"],
        ),
        (
            ChatRequest,
            {"tools": [_TOOL, {"type": "function", "function": {"name": "g", "strickt": True}}]},
            ["tools[1].function.strickt"],
        ),
        (
            ChatRequest,
            {"tool_choice": {"type": "function", "function": {"name": "f", "k": 1}}},
            ["tool_choice.function.k"],
        ),
        (ChatRequest, {"tool_choice": {"type": "any"}}, []),
        (
            ResponseRequest,
            {"include": ["message.output_text.logprobs", "reasoning.encrypted_content"]},
            ["include[1]"],
        ),
        (
            ResponseRequest,
            {
                "input": [
                    {
                        "role": "assistant",
                        "encrypted": "x",
                        "content": [
                            {
                                "type": "output_text",
                                "text": "a",
                                "annotations": [1],
                                "logprobs": [],
                            }
                        ],
                    }
                ]
            },
            ["input[0].encrypted"],
        ),
    ],
)
def test_a_field_within_another_is_named_by_its_place(
    table: type[RequestTable], fields: dict[str, Any], named: list[str]
) -> None:
    needed = CHAT if table is ChatRequest else _RESPONSE
    assert check(table, {**needed, **fields})[1] == named


def test_as_many_are_named_as_a_header_needs() -> None:
    strange = {**_USER, **{f"x{at}": 1 for at in range(1000)}}
    assert len(check(ChatRequest, {**CHAT, "messages": [strange] * 1000})[1]) == MOST_INNER


async def test_places_are_in_the_header(text: TextModel) -> None:
    fields = {**CHAT, "messages": [{**_USER, "prefix": True, "bad\r\nname": 1}]}
    async with running(text, FakeFleet(says([100]))) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json=fields)
    assert answer.status_code == 200
    assert answer.headers["x-gateway-ignored-params"] == "messages[0].prefix, (1 more)"
