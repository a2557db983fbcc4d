"""Ignored fields: reported in each API's own form."""

from __future__ import annotations

from typing import Any

import pytest

from gatewayd.text.text_model import TextModel
from gatewayd_proto_anthropic.strategy import Anthropic
from gatewayd_proto_ollama.config import OllamaConfig
from gatewayd_proto_ollama.strategy import Ollama
from gatewayd_proto_tgi.config import TgiConfig
from gatewayd_proto_tgi.strategy import Tgi
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, running


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "names"),
    [
        (
            "/v1/messages",
            {
                "max_tokens": 4,
                "thinking": {"type": "enabled", "budget_tokens": 1024},
                "output_config": {"effort": "low"},
                "container": "c",
            },
            "container, thinking.budget_tokens, output_config.effort, thinking",
        ),
        ("/api/chat", {"think": "low", "keep_alive": 5}, "keep_alive, think"),
        ("/api/chat", {"think": False}, "think"),
        ("/", {"inputs": "a", "parameters": {"mine": 1}}, "model, messages, parameters.mine"),
        ("/v1/chat/completions", {"enable_thinking": True}, "enable_thinking"),
    ],
)
async def test_what_a_template_does_not_take_has_the_name_that_was_sent(
    text: TextModel, path: str, fields: dict[str, Any], names: str, stream: bool
) -> None:
    served: Any = [
        ("anthropic", Anthropic()),
        ("ollama", Ollama(OllamaConfig())),
        ("tgi", Tgi(TgiConfig())),
    ]
    async with running(text, FakeFleet(says([100])), protocols=served) as gateway:
        answer = await gateway.http.post(path, json={**CHAT, **fields, "stream": stream})
    assert answer.status_code == 200
    assert answer.headers["x-gateway-ignored-params"] == names
