"""Structured output: every dialect becomes one grammar; two at once are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gatewayd.errors import InvalidRequest
from gatewayd.http.openai.structured_output import OutputConstraint, output_constraint
from gatewayd.http.parse import parse
from gatewayd.http.schema.chat import ChatRequest
from gatewayd_hooks.guiding import GuideSpec

CHAT: dict[str, Any] = {"model": "nano", "messages": [{"role": "user", "content": "x"}]}
SCHEMA = {"type": "object", "properties": {"b": {"type": "null"}, "a": {"const": 1}}}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))
TAGS = {
    "triggers": ["<f"],
    "structures": [{"begin": "<f=a>", "schema": {"type": "null"}, "end": "</f>"}],
}


def wish(**fields: Any) -> OutputConstraint | None:
    request, _ = parse(ChatRequest, json.dumps({**CHAT, **fields}).encode())
    return output_constraint(request)


@pytest.mark.parametrize(
    ("fields", "form", "text", "param"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            "json_schema",
            TEXT,
            "response_format.json_schema.schema",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": False, "schema": SCHEMA},
                }
            },
            "json_schema",
            TEXT,
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object"}}, "json_object", "", "response_format"),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            "json_schema",
            TEXT,
            "response_format.schema",
        ),
        (
            {"response_format": {"type": "json", "value": SCHEMA}},
            "json_schema",
            TEXT,
            "response_format.value",
        ),
        (
            {"response_format": {"type": "regex", "value": "a+"}},
            "regex",
            "a+",
            "response_format.value",
        ),
        ({"structured_outputs": {"json": TEXT}}, "json_schema", TEXT, "structured_outputs.json"),
        (
            {"structured_outputs": {"json_object": True}},
            "json_object",
            "",
            "structured_outputs.json_object",
        ),
        (
            {"structured_outputs": {"choice": ["a", "b"]}},
            "choice",
            '["a","b"]',
            "structured_outputs.choice",
        ),
        (
            {"structured_outputs": {"grammar": "start: x", "regex": None}},
            "grammar",
            "start: x",
            "structured_outputs.grammar",
        ),
        ({"guided_json": SCHEMA}, "json_schema", TEXT, "guided_json"),
        ({"guided_regex": "a"}, "regex", "a", "guided_regex"),
        ({"guided_choice": ["\u00e9"]}, "choice", '["\u00e9"]', "guided_choice"),
        ({"guided_grammar": "g"}, "grammar", "g", "guided_grammar"),
        ({"json_schema": TEXT}, "json_schema", TEXT, "json_schema"),
        ({"regex": "a"}, "regex", "a", "regex"),
        ({"ebnf": "g"}, "grammar", "g", "ebnf"),
        ({"grammar": "g"}, "grammar", "g", "grammar"),
    ],
)
def test_spellings(fields: dict[str, Any], form: Any, text: str, param: str) -> None:
    assert wish(**fields) == OutputConstraint(GuideSpec(form, text), param)


@pytest.mark.parametrize(("asked", "is_compact"), [(True, True), (False, False), (None, False)])
@pytest.mark.parametrize(
    "given", [{"json": SCHEMA}, {"json_object": True}, {"structural_tag": TAGS}]
)
def test_blanks_may_be_refused(given: Any, asked: bool | None, is_compact: bool) -> None:
    found = wish(structured_outputs={**given, "disable_any_whitespace": asked})
    plain = wish(structured_outputs=given)
    assert found is not None
    assert plain is not None
    assert found == plain._replace(spec=plain.spec._replace(is_compact=is_compact))


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "structural_tag", **TAGS}},
        {"structured_outputs": {"structural_tag": {"type": "structural_tag", **TAGS}}},
        {"structured_outputs": {"structural_tag": json.dumps(TAGS)}},
    ],
)
def test_structural_tags(fields: dict[str, Any]) -> None:
    found = wish(**fields)
    assert found is not None
    assert found.spec.form == "structural_tag"
    assert json.loads(found.spec.text) == TAGS


def test_free_text() -> None:
    assert wish() is None
    assert wish(response_format={"type": "text"}, guided_json=None) is None


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"guided_regex": "a", "regex": "b"}, "regex", "guided_regex and regex"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs.regex",
            "response_format and structured_outputs.regex",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "is empty"),
        (
            {"structured_outputs": {"regex": "a", "grammar": "b"}},
            "structured_outputs",
            "has regex and grammar",
        ),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " ?"}},
            "structured_outputs.whitespace_pattern",
            "not supported",
        ),
        (
            {"response_format": {"type": "structural_tag", "format": {}}},
            "response_format.format",
            "type is one of",
        ),
        (
            {"structured_outputs": {"structural_tag": {"triggers": ["a"]}}},
            "structured_outputs.structural_tag",
            "needs structures",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "req"),
        ({"response_format": {"type": "json"}}, "response_format.value", "required"),
        ({"response_format": {"type": "regex", "value": {}}}, "response_format.value", "a string"),
        ({"guided_json": "{"}, "guided_json", "not JSON"),
        ({"guided_json": "[" * 5000}, "guided_json", "900 levels"),
        ({"guided_json": "[]"}, "guided_json", "a JSON object"),
        ({"response_format": {}}, "response_format.type", "required"),
        ({"guided_choice": ["a", 1]}, "guided_choice[1]", "a string"),
    ],
)
def test_what_cannot_be_followed(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        wish(**fields)
    assert refused.value.param == param
    assert words in str(refused.value)


TAG = {
    "type": "tag",
    "begin": "<f=a>",
    "content": {"type": "json_schema", "json_schema": {"type": "null"}},
    "end": "</f>",
}


def nested(levels: int) -> dict[str, Any]:
    """A tag within a tag, and so on."""
    return {**TAG, "content": nested(levels - 1)} if levels else TAG


FORMATS: list[tuple[dict[str, Any], str, Any]] = [
    (
        {"type": "triggered_tags", "triggers": ["<f"], "tags": [TAG], "at_least_one": True},
        "structural_tag",
        {**TAGS, "at_least_one": True, "stop_after_first": False},
    ),
    (
        {"type": "tags_with_separator", "tags": [TAG], "separator": ", "},
        "structural_tag",
        {
            **TAGS,
            "triggers": ["<f=a>"],
            "separator": ", ",
            "at_least_one": False,
            "stop_after_first": False,
        },
    ),
    ({**TAG, "end": ["</f>"]}, "format", TAG),
    (
        {"type": "sequence", "elements": [TAG, {"type": "any_text", "excludes": []}]},
        "format",
        {"type": "sequence", "elements": [TAG, {"type": "any_text"}]},
    ),
    (
        {"type": "or", "elements": [{"type": "regex", "pattern": "a+"}, TAG]},
        "format",
        {"type": "or", "elements": [{"type": "regex", "pattern": "a+"}, TAG]},
    ),
    (
        {**TAG, "content": {"type": "any_text"}},
        "format",
        {**TAG, "content": {"type": "any_text"}},
    ),
    ({"type": "json_schema", "json_schema": SCHEMA}, "json_schema", SCHEMA),
    ({"type": "const_string", "value": "yes"}, "choice", ["yes"]),
    (
        {"type": "or", "elements": [{"type": "const_string", "value": one} for one in "ab"]},
        "choice",
        ["a", "b"],
    ),
]


@pytest.mark.parametrize(("format_", "form", "means"), FORMATS)
def test_structural_tags_as_xgrammar_writes_them(
    format_: dict[str, Any], form: str, means: Any
) -> None:
    tag = {"type": "structural_tag", "format": format_}
    for fields in ({"response_format": tag}, {"structured_outputs": {"structural_tag": tag}}):
        found = wish(**fields)
        assert found is not None
        assert found.spec.form == form
        assert json.loads(found.spec.text) == means
        assert found.param in ("response_format.format", "structured_outputs.structural_tag")


@pytest.mark.parametrize(
    ("format_", "place"),
    [
        ("x", ""),
        ({"type": "sequence", "elements": []}, ".elements"),
        ({"type": "sequence", "elements": [TAG, {"type": "token"}]}, ".elements[1]"),
        ({"type": "any_text", "max_tokens": 5}, ".max_tokens"),
        ({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}, ".style"),
        (nested(20), ".content" * 16),
        ({"type": "regex"}, ".pattern"),
        ({"type": "or", "elements": [TAG, 1]}, ".elements[1]"),
        ({"type": "triggered_tags", "tags": [TAG]}, ".triggers"),
        (
            {"type": "triggered_tags", "triggers": ["<f"], "tags": [TAG], "excludes": ["x"]},
            ".excludes",
        ),
        ({**TAG, "content": {"type": "any"}}, ".content"),
        ({**TAG, "end": ["a", "b"]}, ".end"),
        ({"type": "json_schema", "json_schema": "x"}, ".json_schema"),
    ],
)
def test_formats_that_are_not_known_are_refused_by_name(format_: Any, place: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        wish(response_format={"type": "structural_tag", "format": format_})
    assert refused.value.param == f"response_format.format{place}"
