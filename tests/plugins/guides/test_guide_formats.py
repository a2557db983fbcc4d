"""Combined formats: accepted and refused by each guide."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gatewayd.http.openai.structural_tags import either
from gatewayd_hooks.guiding import GrammarRefused, GuideSpec, GuideStrategy
from tests.plugins.guides.guides import (
    ENDS,
    MAKERS,
    TOKENS,
    TOOL_CALL,
    TOOL_CALL_END,
    allowed,
    opened,
    takes,
)

CALLS = {
    "triggers": ["<tool_call>", "<f"],
    "structures": [
        {"begin": "<tool_call>", "schema": {"const": True}, "end": "</tool_call>"},
        {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
    ],
}


@pytest.fixture(scope="module", params=MAKERS)
def guide(request: pytest.FixtureRequest) -> Iterator[GuideStrategy]:
    with opened(MAKERS[request.param]()) as strategy:
        yield strategy


REGEX = {"type": "regex", "pattern": "[a-z]+"}
ANY = {"type": "any_text"}
EBNF = {"type": "grammar", "grammar": 'root ::= "(" root ")" | "x"'}
SMALL = {"type": "json_schema", "json_schema": {"type": "integer"}}
MARKED = {"type": "tag", "begin": "<tool_call>", "content": ANY, "end": "</tool_call>"}


def const(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def within(content: dict[str, Any], end: str = "</t>") -> dict[str, Any]:
    return {"type": "tag", "begin": "<t>", "content": content, "end": end}


TAGGED = {"type": "triggered_tags", "triggers": ["<t>"], "tags": [within(REGEX)]}
COMPOSED: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (ANY, ["", "a <tool_call> b\n"], []),
    (sequence(const("ab"), ANY), ["ab", "ab c"], ["", "a", "b"]),
    (sequence(ANY, const("END")), ["END", "say END"], ["", "say", "END "]),
    (sequence(ANY, const("."), SMALL), ["a.12", ".-1"], ["a.", "12", "a.b"]),
    (sequence(REGEX, const("end"), SMALL), ["abend7", "endend7"], ["end", "abend", "ab7"]),
    (sequence(SMALL, const(", "), EBNF), ["1, x", "-20, ((x))"], ["1", "1, (x", "1,x"]),
    (within(ANY), ["<t></t>", "<t>a</tb</t>", "<t>{\n</t>"], ["", "<t>a", "<t>a</t>b"]),
    (within(REGEX), ["<t>ab</t>"], ["<t></t>", "<t>A</t>", "<t>ab</t>c"]),
    (within(REGEX, "z"), ["<t>az", "<t>zz"], ["<t>z", "<t>a"]),
    (within(sequence(const("x"), ANY)), ["<t>x</t>", "<t>xab</t>"], ["<t></t>", "<t>ab</t>"]),
    (MARKED, ["<tool_call>a b</tool_call>", "<tool_call></tool_call>"], ["<tool_call>a", "a"]),
    (within(within(ANY)), ["<t><t>a</t></t>"], ["<t><t>a</t>", "<t>a</t></t>"]),
    (
        sequence({"type": "or", "elements": [REGEX, const("1")]}, const("end"), SMALL),
        ["abend7", "1end7"],
        ["end7", "1", "abend"],
    ),
    (sequence(within(ANY), SMALL), ["<t>a</t>12"], ["<t>a</t>", "12", "<t>a</t>x"]),
    (
        {"type": "or", "elements": [REGEX, EBNF, within(SMALL), const("YES")]},
        ["abc", "((x))", "<t>5</t>", "YES"],
        ["", "ABC", "(x", "<t>a</t>", "YESYES", "abc5"],
    ),
    (TAGGED, ["", "a", "a<t>b</t>c<t>d</t>"], ["<t>", "<t>A</t>", "a<t>b"]),
    (sequence(const("> "), TAGGED), ["> ", "> a<t>b</t>c"], ["", "a", "> <t>"]),
    (
        {
            "type": "tags_with_separator",
            "tags": [within(ANY), {**within(REGEX), "begin": "<r>"}],
            "separator": ", ",
            "at_least_one": True,
        },
        ["<t>1</t>", "<r>a</t>, <t></t>"],
        ["", "<r>1</t>", "<t>a</t><t>b</t>", "<t>a</t>, "],
    ),
]


@pytest.mark.parametrize(("format_", "right", "wrong"), COMPOSED)
def test_forms_are_put_together(
    guide: GuideStrategy, format_: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    for text in right:
        assert takes(guide, "format", json.dumps(format_), text), text
    for text in wrong:
        assert not takes(guide, "format", json.dumps(format_), text), text


def test_marks_around_any_text_may_be_special_tokens(guide: GuideStrategy) -> None:
    matcher = guide.compile(GuideSpec("format", json.dumps(MARKED))).start()
    inner = TOKENS.of("a < b")
    assert matcher.accept([TOOL_CALL, *inner, TOOL_CALL_END]) == len(inner) + 2
    assert allowed(matcher) == {*ENDS}


@pytest.mark.parametrize(
    ("format_", "words"),
    [
        ({"type": "sequence", "elements": []}, "not empty"),
        ({"type": "token"}, "type is one of"),
        (sequence(REGEX, {"type": "tag", "begin": 1, "content": ANY}), "elements[1].begin"),
        ({"type": "regex", "pattern": "("}, ""),
        (within({"type": "json_schema", "json_schema": {"type": "strange"}}), "strange"),
        ({**TAGGED, "triggers": ["<x>"]}, "none of the triggers"),
    ],
)
def test_formats_that_are_wrong_are_refused(
    guide: GuideStrategy, format_: dict[str, Any], words: str
) -> None:
    with pytest.raises(GrammarRefused) as refused:
        guide.compile(GuideSpec("format", json.dumps(format_)))
    assert words in str(refused.value)


def test_the_whole_may_be_a_value_instead(guide: GuideStrategy) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/number"}},
        "required": ["a"],
        "additionalProperties": False,
        "$defs": {"number": {"type": "integer"}},
    }
    for is_single in (False, True):
        told = {**CALLS, "at_least_one": True, "stop_after_first": is_single}
        calls = either(
            GuideSpec("json_schema", json.dumps(schema)),
            GuideSpec("structural_tag", json.dumps(told)),
        )
        both = calls.text
        for text in ('{"a": 1}', "<f=a>1</f>", "«true»"):
            assert takes(guide, "format", both, text), text
        for text in ("", "text", '{"a": "1"}', "{}", '{"a": 1}<f=a>1</f>', '<f=b>1</f>{"a": 1}'):
            assert not takes(guide, "format", both, text), text


def test_what_one_guide_cannot_put_together_is_refused_by_name() -> None:
    with opened(MAKERS["llguidance"]()) as guide:
        for format_ in (sequence(ANY, REGEX), sequence(TAGGED, const("x")), within(ANY, "")):
            spec = GuideSpec("format", json.dumps(sequence(format_, SMALL)))
            with pytest.raises(GrammarRefused, match="must be at the end"):
                guide.compile(spec)
    lark = {"type": "grammar", "grammar": 'start: "a"'}
    with opened(MAKERS["xgrammar"]()) as guide, pytest.raises(GrammarRefused, match="EBNF"):
        guide.compile(GuideSpec("format", json.dumps(sequence(const("x"), lark))))
    with opened(MAKERS["llguidance"]()) as guide:
        assert takes(guide, "format", json.dumps(sequence(const("x"), lark)), "xa")
