"""Error locations: named as clients of other APIs wrote the fields."""

from __future__ import annotations

from typing import Any

import pytest

from gatewayd.text.text_model import TextModel
from gatewayd_proto_anthropic.strategy import Anthropic
from gatewayd_proto_ollama.config import OllamaConfig
from gatewayd_proto_ollama.strategy import Ollama
from gatewayd_proto_tgi.config import TgiConfig
from gatewayd_proto_tgi.strategy import Tgi
from tests.gatewayd.fake_fleet import FakeFleet
from tests.gatewayd.gateway import running
from tests.gatewayd.http.openai.fake_parsers import parsers

_HI = {"role": "user", "content": "hi"}
_TEXT = {"type": "text", "text": "a"}
_SCHEMA = {"type": "object"}
_LONG = "n" * 300


def _use(**fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "i", "name": "look", "input": {}, **fields}


def _turns(*uses: dict[str, Any], result: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        _HI,
        {"role": "assistant", "content": [_TEXT, *uses]},
        {"role": "user", "content": [_TEXT, {"type": "tool_result", **result}]},
    ]


@pytest.mark.parametrize("system", ["be brief", None])
@pytest.mark.parametrize(
    ("fields", "place"),
    [
        (
            {"messages": _turns(_use(), result={"tool_use_id": ""})},
            "messages[2].content[1].tool_use_id",
        ),
        (
            {"messages": _turns(_use(), _use(name=_LONG), result={"tool_use_id": "i"})},
            "messages[1].content[2].name",
        ),
        (
            {"messages": _turns(_use(id=""), result={"tool_use_id": "i"})},
            "messages[1].content[1].id",
        ),
        ({"tools": [{"name": "a b", "input_schema": _SCHEMA}]}, "tools[0].name"),
        (
            {"tools": [{"name": "a", "input_schema": _SCHEMA, "strict": 3}]},
            "tools[0].strict",
        ),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"temperature": 7}, "temperature"),
        ({"top_p": 0}, "top_p"),
    ],
)
async def test_of_the_messages_api(
    text: TextModel, fields: dict[str, Any], place: str, system: str | None
) -> None:
    served: Any = [("anthropic", Anthropic())]
    body = {"model": "nano", "max_tokens": 4, "messages": [_HI], "system": system, **fields}
    async with running(text, FakeFleet(), protocols=served, parsers=parsers()) as gateway:
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            if path.endswith("tokens") and not place.startswith(("messages", "tools")):
                continue
            answer = await gateway.http.post(path, json=body)
            assert answer.status_code == 400, answer.text
            message = answer.json()["error"]["message"]
            assert message.startswith((f"{place} ", f"{place}: ")), message


@pytest.mark.parametrize(
    ("path", "fields", "place"),
    [
        ("/api/chat", {"messages": [_HI], "options": {"top_p": 7}}, "options.top_p"),
        ("/api/chat", {"messages": [_HI], "options": {"top_p": 0}}, "options.top_p"),
        ("/api/chat", {"messages": [_HI, {"role": "robot"}]}, "messages[1].role"),
    ],
)
async def test_of_ollama(text: TextModel, path: str, fields: dict[str, Any], place: str) -> None:
    served: Any = [("ollama", Ollama(OllamaConfig()))]
    async with running(text, FakeFleet(), protocols=served) as gateway:
        answer = await gateway.http.post(path, json={"model": "nano", **fields})
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]
    assert message.startswith((f"{place} ", f"{place}: ")), message


@pytest.mark.parametrize(
    ("parameters", "place"),
    [
        ({"top_p": 7}, "parameters.top_p"),
        ({"stop": [""]}, "parameters.stop[0]"),
        ({"best_of": 99}, "parameters.best_of"),
        ({"seed": -1}, "parameters.seed"),
    ],
)
async def test_of_tgi(text: TextModel, parameters: dict[str, Any], place: str) -> None:
    served: Any = [("tgi", Tgi(TgiConfig()))]
    async with running(text, FakeFleet(), protocols=served) as gateway:
        answer = await gateway.http.post("/", json={"inputs": "a", "parameters": parameters})
    assert answer.status_code == 400, answer.text
    told = answer.json()
    assert told["error"].startswith((f"{place} ", f"{place}: ")), told
    assert told["error_type"] == "validation"
