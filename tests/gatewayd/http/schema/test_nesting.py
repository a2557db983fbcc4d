"""Deeply nested bodies: refused with the field's name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd.text.text_model import TextModel
from gatewayd_hooks.requests.nesting import MAX_DEPTH, field_too_deep, is_too_deep
from gatewayd_proto_anthropic.strategy import Anthropic
from gatewayd_proto_ollama.config import OllamaConfig
from gatewayd_proto_ollama.strategy import Ollama
from gatewayd_proto_tgi.config import TgiConfig
from gatewayd_proto_tgi.strategy import Tgi
from tests.gatewayd.fake_fleet import FakeFleet
from tests.gatewayd.gateway import running

DEEP = b"[" * 10_000 + b"]" * 10_000
DEEP_OBJECT = b'{"a":' * 10_000 + b"1" + b"}" * 10_000


@pytest.mark.parametrize("value", [DEEP, DEEP_OBJECT, DEEP_OBJECT[:-10_001]])
@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b'{"model": "nano", "x": ', "x"),
        (b'{"a": {"b": [1, {"c": "]}"}]}, "q\\"[": ', 'q"['),
        (b'{"a": "[[[", "\\u00e9": ', "\u00e9"),
    ],
)
def test_the_field_is_found(head: bytes, name: str, value: bytes) -> None:
    assert field_too_deep(head + value + b', "z": [1]}') == name


@pytest.mark.parametrize("body", [DEEP, b"", b"{", b'{"a": [1]}', b'"' * 10_000, b"[" * 10_000])
def test_where_there_is_no_field_none_is_named(body: bytes) -> None:
    assert field_too_deep(body) is None


@given(st.lists(st.sampled_from(["[", "]", "{", "}", '"', '\\"', '"[[}{"', "\\\\", "1,"])))
def test_depth_is_counted_outside_of_strings(parts: list[str]) -> None:
    inner = json.dumps("".join(parts)).encode()
    for depth in (MAX_DEPTH - 1, MAX_DEPTH):
        value = b"[" * depth + inner + b"," + inner + b"]" * depth
        assert not is_too_deep(value)
        json.loads(value)
        assert is_too_deep(b"[" + value + b"]") is (depth == MAX_DEPTH)
        assert not is_too_deep(b"[" + b",".join([b"[]"] * 2 * depth) + b"]")


@pytest.mark.parametrize("field", ["response_format", "messages", "tools", "metadata"])
async def test_the_refusal_names_it_and_the_limit(text: TextModel, field: str) -> None:
    content = b'{"model": "nano", "%b": %b}' % (field.encode(), DEEP_OBJECT)
    async with running(text, FakeFleet()) as gateway:
        answer = await gateway.http.post(
            "/v1/chat/completions",
            content=content,
            headers={"content-type": "application/json"},
        )
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_json", field)
    assert f"{field} is nested too deeply: at most 900" in error["message"]


@pytest.mark.parametrize(("path", "field"), [("/v1/messages", "system"), ("/api/chat", "format")])
async def test_so_do_those_of_other_apis(text: TextModel, path: str, field: str) -> None:
    content = b'{"model": "nano", "%b": %b}' % (field.encode(), DEEP)
    served: Any = [
        ("anthropic", Anthropic()),
        ("ollama", Ollama(OllamaConfig())),
        ("tgi", Tgi(TgiConfig())),
    ]
    async with running(text, FakeFleet(), protocols=served) as gateway:
        answer = await gateway.http.post(path, content=content)
    assert answer.status_code == 400
    assert f"{field} is nested too deeply: at most 900" in answer.text
