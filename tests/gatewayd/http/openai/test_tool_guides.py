"""Tool grammars: calls, forms instead of them, both behind reasoning."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gatewayd.text.template import ChatTemplate
from gatewayd.text.text_model import TextModel
from gatewayd_engine.offline.train.chats import LOOKUP
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import Gateway, running
from tests.gatewayd.http.openai.fake_parsers import parsers
from tests.gatewayd.http.openai.test_tools import CALL, OTHER, THOUGHT, ask, script
from tests.gatewayd.http.sse_events import MESSAGES

STRICT = {"type": "function", "function": {"name": "keep", "strict": True}}


def guide(gateway: Gateway) -> dict[str, Any]:
    spec = gateway.fleet.jobs[-1].request.params.guide
    assert spec is not None
    assert spec[0] == "structural_tag"
    told: dict[str, Any] = json.loads(str(spec[1]))
    return told


ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {
        "mode": "auto",
        "tools": [{"type": "function", "function": {"name": "other"}}],
    },
}


@pytest.mark.parametrize(
    ("fields", "names", "must", "single"),
    [
        ({"tool_choice": "required"}, ["lookup", "other"], True, False),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            ["lookup", "other"],
            True,
            True,
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": "other"}}},
            ["other"],
            True,
            True,
        ),
        ({"tool_choice": ALLOWED}, ["other"], False, False),
        ({"tools": [LOOKUP, STRICT]}, ["lookup", "keep"], False, False),
    ],
)
async def test_what_must_be_called_is_what_the_answer_follows(
    text: TextModel, fields: dict[str, Any], names: list[str], must: bool, single: bool
) -> None:
    async with running(text, FakeFleet(script(text, CALL)), parsers=parsers()) as gateway:
        await ask(gateway, **{"tools": [LOOKUP, OTHER], **fields})
        told = guide(gateway)
    begins = [one["begin"] for one in told["structures"]]
    assert begins == [f'<tool_call>\n{{"name": "{name}", "arguments": ' for name in names]
    assert (told["at_least_one"], told["stop_after_first"]) == (must, single)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}


TEXT_TAG = {
    "type": "tag",
    "begin": "<p>",
    "content": {"type": "any_text"},
    "end": "</p>",
}
YES_OR_NO = [{"type": "const_string", "value": one} for one in ("yes", "no")]


@pytest.mark.parametrize(
    ("form", "format_"),
    [
        ({"response_format": FORM}, {"type": "json_schema", "json_schema": SCHEMA}),
        (
            {"response_format": {"type": "json_object"}},
            {"type": "json_schema", "json_schema": {"type": "object"}},
        ),
        ({"guided_regex": "a+"}, {"type": "regex", "pattern": "a+"}),
        ({"guided_choice": ["yes", "no"]}, {"type": "or", "elements": YES_OR_NO}),
        ({"grammar": 'root ::= "a"'}, {"type": "grammar", "grammar": 'root ::= "a"'}),
        ({"response_format": {"type": "structural_tag", "format": TEXT_TAG}}, TEXT_TAG),
    ],
)
async def test_beside_a_form_an_answer_is_calls_or_a_text_in_it(
    text: TextModel, form: dict[str, Any], format_: dict[str, Any]
) -> None:
    async with running(text, FakeFleet(script(text, CALL)), parsers=parsers()) as gateway:
        answer = await ask(gateway, **form)
        params = gateway.fleet.jobs[-1].request.params
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "lookup"
    assert params.guide is not None
    assert params.guide[0] == "format"
    told = json.loads(str(params.guide[1]))
    assert (told["type"], told["elements"][0]) == ("or", format_)
    calls = told["elements"][1]
    assert (calls["type"], calls["at_least_one"]) == ("tags_with_separator", True)
    assert [one["begin"] for one in calls["tags"]] == [
        '<tool_call>\n{"name": "lookup", "arguments": '
    ]


async def test_a_form_that_cannot_be_read_is_refused_beside_tools_too(text: TextModel) -> None:
    async with running(text, FakeFleet(script(text, CALL)), parsers=parsers()) as gateway:
        error = (await ask(gateway, guided_json="{"))["error"]
    assert error["param"] == "guided_json"


async def test_where_there_must_be_a_call_a_form_says_nothing(text: TextModel) -> None:
    async with running(text, FakeFleet(script(text, CALL)), parsers=parsers()) as gateway:
        await ask(gateway, tool_choice="required")
        alone = guide(gateway)
        await ask(gateway, tool_choice="required", response_format=FORM)
        assert guide(gateway) == alone


async def test_tools_that_are_off_leave_the_form(text: TextModel) -> None:
    async with running(text, FakeFleet(script(text, CALL)), parsers=parsers()) as gateway:
        await ask(gateway, tool_choice="none", response_format=FORM)
        await ask(gateway, tool_choice="none", guided_regex="a+")
        guides = [job.request.params.guide for job in gateway.fleet.jobs]
    assert [one and one[0] for one in guides] == ["json_schema", "regex"]


OPENS, CLOSED = ("", "</think>"), "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("prompt_end", "bounds"), [("", ("<think>", "</think>")), ("<think>\n", OPENS), (CLOSED, None)]
)
@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None, "response_format": {"type": "json_object"}},
        {"tools": [STRICT]},
        {"tool_choice": "required", "separate_reasoning": False},
    ],
)
async def test_what_an_answer_must_follow_begins_behind_its_reasoning(
    text: TextModel, prompt_end: str, bounds: tuple[str, str] | None, fields: dict[str, Any]
) -> None:
    """Whatever the template has opened, or closed."""
    model = text
    if prompt_end:
        assert text.template is not None
        source = f"{text.template.source}{{{{ {prompt_end!r} }}}}"
        model = TextModel(text.tokenizer, ChatTemplate(source))
    fleet = FakeFleet(script(text, THOUGHT if bounds is None or bounds[0] else THOUGHT[8:]))
    async with running(model, fleet, parsers=parsers(reasoning=True)) as gateway:
        answer = await ask(gateway, **fields)
        params = gateway.fleet.jobs[-1].request.params
    message = answer["choices"][0]["message"]
    assert params.guide is not None
    assert params.guide_behind == bounds
    if fields.get("separate_reasoning") is None:
        assert (message["reasoning"], message["content"]) == ("Hm, well.", "Yes.")


async def test_an_answer_that_goes_on_with_a_text_has_no_reasoning_before_its_form(
    text: TextModel,
) -> None:
    begun = {"role": "assistant", "content": "The answer:"}
    fields = {"add_generation_prompt": False, "continue_final_message": True}
    async with running(text, FakeFleet(says([100])), parsers=parsers(reasoning=True)) as gateway:
        await ask(gateway, tools=None, regex="a+", messages=[*MESSAGES, begun], **fields)
        await ask(gateway, tools=None)
        assert [job.request.params.guide_behind for job in gateway.fleet.jobs] == [None, None]
