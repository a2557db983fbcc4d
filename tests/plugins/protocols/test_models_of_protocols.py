"""Model information of Ollama's and TGI's API, for one model and for several."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import ollama
import pytest

from gatewayd_hooks.protocols import HttpResponse, RequestRefusal
from gatewayd_hooks.testing.fake_gateway import MODEL, FakeGateway, request
from gatewayd_proto_tgi.config import TgiConfig
from gatewayd_proto_tgi.strategy import Tgi
from tests.plugins.protocols.test_proto_ollama import call

BASE = MODEL._replace(
    architecture="Qwen3ForCausalLM",
    num_parameters=10**9,
    dtype="bfloat16",
    chat_template="",
    context_length=99,
)


def info(gateway: FakeGateway) -> dict[str, Any]:
    routes = {route.path: route.handler for route in Tgi(TgiConfig()).routes(gateway)}

    async def ask() -> HttpResponse:
        return await routes["/info"](request("GET", "/info"))

    response = asyncio.run(ask())
    found: dict[str, Any] = json.loads(response.body)  # type: ignore[arg-type]
    return found


def test_tgi_describes_the_model_whose_name_it_gives() -> None:
    gateway = FakeGateway()
    gateway.others = {"base": BASE, "late": None}
    gateway.models = ("base", "nano")  # as a key may see them that may not use the default
    found = info(gateway)
    assert (found["model_id"], found["model_dtype"]) == ("base", "bfloat16")
    assert found["max_total_tokens"] == 99
    gateway.models = ("late", "nano")
    with pytest.raises(RequestRefusal, match="the model late was never loaded") as caught:
        info(gateway)
    assert caught.value.status == 503


def test_models_are_described() -> None:
    gateway = FakeGateway()
    names = ollama.ListResponse.model_validate_json(call(gateway, "GET /api/tags").body)  # type: ignore[arg-type]
    assert [model.model for model in names.models] == ["nano:latest", "nano-alias:latest"]
    running = ollama.ProcessResponse.model_validate_json(call(gateway, "GET /api/ps").body)  # type: ignore[arg-type]
    assert running.models[0].context_length == MODEL.context_length
    shown = ollama.ShowResponse.model_validate_json(call(gateway, "POST /api/show").body)  # type: ignore[arg-type]
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert shown.modelinfo is not None
    assert shown.modelinfo["llama.context_length"] == MODEL.context_length
    gateway.model = None
    assert json.loads(call(gateway, "GET /api/ps").body) == {"models": []}  # type: ignore[arg-type]


def test_each_name_is_described_by_its_own_model() -> None:
    gateway = FakeGateway()
    gateway.models = ("nano", "base", "late")
    gateway.others = {"base": BASE, "late": None}
    tags = json.loads(call(gateway, "GET /api/tags").body)["models"]  # type: ignore[arg-type]
    assert [(one["details"]["family"], one["size"]) for one in tags] == [
        ("llama", 44_000_000),
        ("qwen3", 2 * 10**9),
        ("", 0),
    ]
    # Ollama's client reads them all, also what was never loaded.
    assert len(ollama.ListResponse.model_validate({"models": tags}).models) == 3
    found = json.loads(call(gateway, "GET /api/ps").body)["models"]  # type: ignore[arg-type]
    assert [(one["model"], one["context_length"]) for one in found] == [
        ("nano:latest", 2048),
        ("base:latest", 99),
    ]
    gateway.asleep = {"base"}
    found = json.loads(call(gateway, "GET /api/ps").body)["models"]  # type: ignore[arg-type]
    assert [one["model"] for one in found] == ["nano:latest"]
    shown = [json.loads(call(gateway, "POST /api/show", model=one).body) for one in gateway.models]  # type: ignore[arg-type]
    assert [one["capabilities"] for one in shown] == [
        ["completion", "tools", "thinking"],
        ["completion"],
        ["completion", "tools", "thinking"],
    ]
    assert shown[1]["model_info"]["qwen3.context_length"] == 99
    assert ollama.ShowResponse.model_validate(shown[2]).template == MODEL.chat_template
    for name, field in (("nano", "messages"), ("base", "prompt"), ("late", "messages")):
        call(gateway, "POST /api/generate", model=name, prompt="hi")
        assert field in gateway.bodies[-1], name
    assert gateway.loads == []
