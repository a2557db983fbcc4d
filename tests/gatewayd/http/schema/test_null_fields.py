"""Null and empty fields: accepted where they ask for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gatewayd.errors import InvalidRequest
from gatewayd.http.parse import check
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.completion import CompletionRequest
from gatewayd.http.schema.decisions import DecisionItem
from gatewayd.http.schema.embeddings import EmbeddingRequest
from gatewayd.http.schema.generation import KvRetention
from gatewayd.http.schema.messages import ChatMessage, MessageToolCall
from gatewayd.http.schema.rerank import RerankRequest, ScoreRequest
from gatewayd.http.schema.responses import InputItem, ResponseRequest
from gatewayd.http.schema.structured import StructuredOutputs, TagStructure
from gatewayd.http.schema.tokenize import TokenizeRequest
from gatewayd.text.text_model import TextModel
from gatewayd_hooks.requests.tables import RequestTable
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, running

_NEEDED: dict[type[RequestTable], dict[str, Any]] = {
    ChatRequest: CHAT,
    CompletionRequest: {"model": "nano", "prompt": "a"},
    EmbeddingRequest: {"model": "nano", "input": "a"},
    RerankRequest: {"model": "nano", "query": "a", "documents": ["a"]},
    ScoreRequest: {"model": "nano", "text_1": "a", "text_2": "b"},
    ResponseRequest: {"model": "nano", "input": "a"},
    TokenizeRequest: {"model": "nano", "prompt": "a"},
    ChatMessage: {"role": "user", "content": "a"},
    MessageToolCall: {"id": "a", "function": {"name": "f", "arguments": "{}"}},
    InputItem: {"role": "user", "content": "a"},
    DecisionItem: {"role": "user", "content": "a"},
    StructuredOutputs: {"json": {}},
    TagStructure: {"begin": "a", "end": "b"},
    KvRetention: {"priority": 50},
}


def _optional() -> Iterator[tuple[type[RequestTable], str]]:
    for table, needed in _NEEDED.items():
        for name, info in table.model_fields.items():
            name = info.alias or name
            if not info.is_required() and name not in needed:
                yield table, name


@pytest.mark.parametrize(("table", "name"), list(_optional()))
def test_null_is_the_same_as_nothing(table: type[RequestTable], name: str) -> None:
    needed = _NEEDED[table]
    assert check(table, {**needed, name: None}) == check(table, needed)


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"store": True}, ["store"]),
        ({"store": False}, []),
        (
            {"verbosity": "low", "nobody_knows": 1, "nobody_asks": None},
            ["verbosity", "nobody_knows"],
        ),
    ],
)
def test_what_is_not_done_is_told(fields: dict[str, Any], ignored: list[str]) -> None:
    assert check(ChatRequest, {**CHAT, **fields})[1] == ignored


@pytest.mark.parametrize("table", [ChatRequest, ResponseRequest])
def test_no_mass_at_all_says_how_to_ask_for_the_most_likely_token(
    table: type[RequestTable],
) -> None:
    given = CHAT if table is ChatRequest else {"model": "nano", "input": "a"}
    with pytest.raises(InvalidRequest, match=r"^top_p is 0; .*set temperature to 0$") as refused:
        check(table, {**given, "top_p": 0})
    assert refused.value.param == "top_p"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_a_turn_that_only_thought_can_be_sent_back(text: TextModel, name: str) -> None:
    turn = {"role": "assistant", "content": None, name: "Hm."}
    messages = [{"role": "user", "content": "a"}, turn, {"role": "user", "content": "b"}]
    async with running(text, FakeFleet(says(text.tokenizer.encode("b")))) as gateway:
        response = await gateway.http.post(
            "/v1/chat/completions", json={**CHAT, "messages": messages}
        )
    assert response.status_code == 200, response.text


async def test_calls_may_stand_beside_an_empty_list(text: TextModel) -> None:
    call = {"id": "a", "type": None, "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [], "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "b"},
    ]
    async with running(text, FakeFleet(says(text.tokenizer.encode("b")))) as gateway:
        response = await gateway.http.post(
            "/v1/chat/completions", json={**CHAT, "messages": messages}
        )
    assert response.status_code == 200, response.text
