"""Foreign clients: requests written for other servers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gatewayd.text.text_model import TextModel
from gatewayd_engine.offline.train.chats import LOOKUP
from gatewayd_proto_anthropic.strategy import Anthropic
from tests.gatewayd.fake_fleet import CONTEXT, FakeFleet, says
from tests.gatewayd.gateway import CHAT, Gateway, running
from tests.gatewayd.http.openai.fake_parsers import parsers

MESSAGE = {**CHAT, "max_tokens": 4}


@pytest.fixture
async def gateway(text: TextModel) -> AsyncIterator[Gateway]:
    served: Any = [("anthropic", Anthropic())]
    async with running(
        text, FakeFleet(says([100])), parsers=parsers(), protocols=served
    ) as gateway:
        yield gateway


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/v1/messages/"])
async def test_a_slash_at_the_end_changes_nothing(gateway: Gateway, path: str) -> None:
    assert (await gateway.http.post(path, json=MESSAGE)).status_code == 200
    assert (await gateway.http.get(path)).headers["allow"] == "POST"


async def test_a_slash_behind_a_list_is_no_name(gateway: Gateway) -> None:
    for path in ("/v1/models", "/v1/models/nano"):
        with_slash = (await gateway.http.get(f"{path}/")).json()
        assert with_slash == (await gateway.http.get(path)).json()


async def test_a_slash_opens_no_door(text: TextModel) -> None:
    async with running(text, FakeFleet(), api_key="key") as gateway:
        for path in ("/livez/", "/v1/models/", "/metrics/"):
            answer = await gateway.http.get(path, headers={"authorization": "Bearer no"})
            assert answer.status_code == 401


@pytest.mark.parametrize(
    ("choice", "meant"),
    [("any", "required"), ({"type": "any"}, "required"), ({"type": "auto"}, "auto")],
)
async def test_a_choice_of_tools_may_be_spelled_as_elsewhere(
    gateway: Gateway, choice: Any, meant: str
) -> None:
    shown = []
    for given in (choice, meant):
        body = {**CHAT, "tools": [LOOKUP], "tool_choice": given}
        assert (await gateway.http.post("/v1/chat/completions", json=body)).status_code == 200
        shown.append(gateway.fleet.jobs[-1].request.params.guide)
    assert shown[0] == shown[1]
    assert (shown[0] is None) == (meant == "auto")


async def test_no_two_messages_have_one_id(gateway: Gateway) -> None:
    ids = set()
    for _ in range(2):
        for most in (4, 50 * CONTEXT):  # what is more than the context is asked for twice
            answer = await gateway.http.post("/v1/messages", json={**CHAT, "max_tokens": most})
            ids.add(answer.json()["id"])
    assert len(ids) == 4
    assert all(re.fullmatch(r"msg_[0-9a-z]{16,}(_\d)?", one) for one in ids)


async def test_agents_find_the_words_that_make_them_shorten(gateway: Gateway) -> None:
    long = [{"role": "user", "content": "word " * 2 * CONTEXT}]
    answer = await gateway.http.post("/v1/messages", json={**MESSAGE, "messages": long})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["message"].startswith("prompt is too long: ")
