"""Invalid tools: the wrong one is named, with its allowed values."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from gatewayd.config.tables import GuideTable
from gatewayd.engines.grammar_checks.checks import GuideChecks
from gatewayd.errors import InvalidRequest
from gatewayd.http.openai.tools import tool_offer
from gatewayd.http.parse import check
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.services import Services
from gatewayd_engine.model import embedded
from tests.gatewayd.gateway import CHAT
from tests.gatewayd.http.openai.fake_parsers import parsers


@pytest.fixture
async def checks() -> AsyncIterator[GuideChecks]:
    fleet: Any = SimpleNamespace(model=SimpleNamespace(vocab_size=4096, eos_token_ids=[0, 2]))
    made = GuideChecks(GuideTable, str(embedded.folder("nano")), fleet)
    yield made
    await made.close()


def _tool(name: str, schema: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema, **fields}}


async def test_the_tool_is_named_whose_schema_cannot_be_kept(checks: GuideChecks) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "strin"}}}
    tools = [
        _tool("free", bad),
        _tool("good", {"type": "object"}, strict=True),
        _tool("bad", bad, strict=True),
    ]
    request, _ = check(ChatRequest, {**CHAT, "tools": tools})
    constraint = tool_offer(request, parsers(), takes_tools=True).constraint
    services: Any = SimpleNamespace(local=SimpleNamespace(guides=checks))
    with pytest.raises(InvalidRequest) as refused:
        await Services.check_guide(services, constraint)
    place = "tools[2].function.parameters"
    assert refused.value.param == place
    assert refused.value.message == f"{place}: json_schema: Invalid type: strin"


@pytest.mark.parametrize(
    ("choice", "place", "words"),
    [
        ({"type": "funct"}, "tool_choice", "or an object of type 'function' or 'allowed_tools'"),
        ({"name": "f"}, "tool_choice", "or an object of type 'function' or 'allowed_tools'"),
        ({"type": "function", "function": {"name": "a b"}}, "tool_choice.function.name", "match"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "any", "tools": []}},
            "tool_choice.allowed_tools.mode",
            "'auto' or 'required'",
        ),
    ],
)
def test_a_choice_that_is_none_is_told_what_would_be(choice: Any, place: str, words: str) -> None:
    tools = [_tool("f", {"type": "object"})]
    with pytest.raises(InvalidRequest, match=words) as refused:
        check(ChatRequest, {**CHAT, "tools": tools, "tool_choice": choice})
    assert refused.value.param == place
