"""Malformed requests: refused with 400 and the field's name, never 500."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd.errors import InvalidRequest
from gatewayd.http.parse import parse
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.completion import CompletionRequest
from gatewayd.http.schema.tokenize import DetokenizeRequest, TokenizeRequest
from gatewayd.text.text_model import TextModel
from gatewayd_hooks.requests.tables import RequestTable
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, COMPLETION, running
from tests.gatewayd.http.schema.malformed_bodies import (
    BAD_MESSAGES,
    BROKEN_JSON,
    bad_fields,
    with_field,
)

JSON = {"content-type": "application/json"}
ROUTES: list[tuple[str, type[RequestTable], dict[str, Any]]] = [
    ("/v1/chat/completions", ChatRequest, CHAT),
    ("/v1/completions", CompletionRequest, COMPLETION),
    ("/tokenize", TokenizeRequest, {"prompt": "x"}),
    ("/detokenize", DetokenizeRequest, {"tokens": [1]}),
]


@pytest.mark.parametrize(("path", "table", "body"), ROUTES)
async def test_every_field_refuses_what_its_table_does_not_allow(
    text: TextModel, path: str, table: type[RequestTable], body: dict[str, Any]
) -> None:
    bad = list(bad_fields(table))
    async with running(text, FakeFleet(says([100]))) as gateway:
        for one in bad:
            response = await gateway.http.post(path, content=with_field(body, one), headers=JSON)
            assert response.status_code == 400, (one.field, one.literal[:60], response.text)
            error = response.json()["error"]
            assert error["type"] == "invalid_request_error"
            if error["code"] != "invalid_json":
                assert error["param"].split("[")[0].split(".")[0] == one.field
                assert one.field in error["message"]
        assert gateway.fleet.jobs == []
        assert (await gateway.http.post(path, json=body)).status_code == 200
    assert len(bad) > (200 if "completions" in path else 10)


@pytest.mark.parametrize("path", [route[0] for route in ROUTES])
async def test_what_is_not_strict_json_is_refused(text: TextModel, path: str) -> None:
    async with running(text, FakeFleet()) as gateway:
        for content in BROKEN_JSON:
            response = await gateway.http.post(path, content=content, headers=JSON)
            assert response.status_code == 400, (content[:60], response.text)
            assert response.json()["error"]["code"] == "invalid_json", content[:60]


async def test_messages_of_the_wrong_shape_are_refused(text: TextModel) -> None:
    async with running(text, FakeFleet()) as gateway:
        for messages in BAD_MESSAGES:
            response = await gateway.http.post(
                "/v1/chat/completions", json={**CHAT, "messages": messages}
            )
            assert response.status_code == 400, messages
            assert response.json()["error"]["param"].startswith("messages"), response.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 3}, "temperature is 3; the maximum is 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; it must be greater than 0"),
        ({"n": 10**9}, "n is 1000000000; the maximum is 16"),
        ({"stop": 5}, "stop must be a string or a list, not 5"),
        ({"stop": ["a", 5]}, "stop[1] must be a string, not 5"),
        ({"stop": ["a", ""]}, "stop[1] is empty"),
        ({"seed": "7"}, 'seed must be an integer, not "7"'),
        ({"messages": [{"role": "user"}]}, "messages[0].content is required"),
        ({"messages": [{"role": "x", "content": "a"}]}, "messages[0].role is"),
        ({"tools": [{"type": "function"}]}, "tools[0].function is required"),
        ({"chat_template": "{{ x }}"}, "a chat_template in the request is refused"),
        ({"response_format": {"type": "xml"}}, "response_format.type is"),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs"),
        ({"logit_bias": {"x": 1}}, "keys are token ids"),
    ],
)
async def test_a_refusal_says_what_is_wrong_and_what_is_right(
    text: TextModel, change: dict[str, Any], message: str
) -> None:
    async with running(text, FakeFleet()) as gateway:
        response = await gateway.http.post("/v1/chat/completions", json={**CHAT, **change})
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


async def test_a_missing_model_is_named_and_an_unknown_one_is_404(text: TextModel) -> None:
    async with running(text, FakeFleet()) as gateway:
        missing = await gateway.http.post(
            "/v1/chat/completions", json={"messages": CHAT["messages"]}
        )
        unknown = await gateway.http.post("/v1/chat/completions", json={**CHAT, "model": "x"})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "model")
    assert missing.json()["error"]["code"] == "missing_required_parameter"
    assert unknown.status_code == 404
    assert unknown.json()["error"]["code"] == "model_not_found"
    assert "nano" in unknown.json()["error"]["message"]


async def test_unknown_and_ignored_fields_are_accepted_and_named(text: TextModel) -> None:
    extra = {"verbosity": "low", "frobnicate": 1, "bad\r\nname": 2, "user": "u", "tools": []}
    async with running(text, FakeFleet(says([100]))) as gateway:
        named = await gateway.http.post("/v1/chat/completions", json={**CHAT, **extra})
        plain = await gateway.http.post("/v1/chat/completions", json=CHAT)
    assert named.status_code == 200
    assert named.headers["x-gateway-ignored-params"] == "verbosity, frobnicate, (1 more)"
    assert "x-gateway-ignored-params" not in plain.headers


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.sampled_from(ROUTES), st.data())
def test_any_json_in_any_field_is_taken_or_refused_cleanly(
    route: tuple[str, type[RequestTable], dict[str, Any]], data: st.DataObject
) -> None:
    _, table, body = route
    field = data.draw(st.sampled_from(sorted(table.model_fields)))
    changed = json.dumps({**body, field: data.draw(json_values)}).encode()
    with contextlib.suppress(InvalidRequest):
        parse(table, changed)


@given(st.binary(max_size=200))
def test_any_bytes_are_taken_or_refused_cleanly(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse(ChatRequest, body)
