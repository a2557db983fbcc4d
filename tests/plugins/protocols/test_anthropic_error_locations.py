"""Anthropic error locations: Messages API names of refused or ignored fields."""

from __future__ import annotations

from typing import Any

import pytest

from gatewayd_hooks.protocols import RequestRefusal
from gatewayd_hooks.testing.fake_gateway import FakeGateway
from gatewayd_proto_anthropic.requests import convert_request
from gatewayd_proto_anthropic.strategy import Anthropic
from tests.plugins.protocols.test_proto_anthropic import ASK, call, refused, turns

_FORM = {"type": "json_schema", "schema": {}}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("response_format.json_schema.schema", "output_format.schema"),
        ("response_format", "output_format"),
        ("tools[1].function.parameters", "tools[1].input_schema"),
        ("tools[1].function.strict", "tools[1].strict"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("messages", "messages"),
        ("messages[0].content", "system"),
        ("messages[9].content", "messages[9].content"),
    ],
)
def test_a_refusal_names_the_place_that_was_written(theirs: str, ours: str) -> None:
    gateway = FakeGateway()
    gateway.refusal = RequestRefusal(400, f"{theirs}: no", param=theirs)
    with pytest.raises(RequestRefusal) as caught:
        call(gateway, system="a", output_format=_FORM)
    assert (caught.value.param, caught.value.message) == (ours, f"{ours}: no")


def test_a_field_that_begins_as_another_keeps_its_name() -> None:
    refusal = refused(stop_sequences="x")
    assert b'"stop_sequences must be a list' in Anthropic().error(refusal, "r").body  # type: ignore[operator]


@pytest.mark.parametrize(
    ("block", "named"),
    [
        ({"type": "text", "text": "a", "citations": None, "cache_control": {"ttl": "1h"}}, []),
        ({"type": "text", "text": "a", "lang": "en"}, ["lang"]),
        ({"type": "tool_result", "tool_use_id": "i", "depth": 1}, ["depth"]),
        ({"type": "document", "citations": {"enabled": False}}, []),
        (
            {"type": "document", "context": "c", "citations": {"enabled": True}},
            ["context", "citations"],
        ),
    ],
)
def test_what_a_block_has_besides_is_named_by_its_place(
    block: dict[str, Any], named: list[str]
) -> None:
    source = {"source": {"type": "text", "data": "d"}} if block["type"] == "document" else {}
    told = convert_request(
        {**ASK, **turns([{"type": "text", "text": "a"}, {**block, **source}])}
    ).ignored
    assert told == [f"messages[0].content[1].{name}" for name in named]
