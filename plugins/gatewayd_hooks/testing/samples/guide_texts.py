"""Small grammars of every form, with texts that match them and texts that do not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from gatewayd_hooks.guiding import GuideSpec


class Sample(NamedTuple):
    """One grammar.

    Attributes:
        spec: of the grammar.
        right: texts that match it.
        wrong: texts that do not.
        fits: whether a text matches it, by other means.
    """

    spec: GuideSpec
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    fits: Callable[[str], bool]


_SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yes"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
_TAGS = {
    "triggers": ["<f"],
    "structures": [{"begin": "<f=a>", "schema": {"type": "boolean"}, "end": "</f>"}],
}


_TAG = {"type": "tag", "begin": "<p>", "content": {"type": "any_text"}, "end": "</p>"}
_FORMAT = {
    "type": "or",
    "elements": [
        {
            "type": "sequence",
            "elements": [_TAG, {"type": "json_schema", "json_schema": {"type": "boolean"}}],
        },
        {"type": "regex", "pattern": "[0-9]{2}"},
    ],
}


def _is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


def _follows_schema(text: str) -> bool:
    value = json.loads(text)
    return list(value) == ["a", "b"] and value["a"] in ("x", "yes") and value["b"] in (True, False)


def _matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text, re.DOTALL) is not None


SAMPLES = (
    Sample(
        GuideSpec("json_object", ""), ("{}", '{"a":[1,true]}'), ("[]", "{", "1", ""), _is_object
    ),
    Sample(
        GuideSpec("json_schema", json.dumps(_SCHEMA)),
        ('{"a":"x","b":true}', '{"a":"yes","b":false}'),
        ("{}", '{"a":"x"}', '{"a":"z","b":true}', '{"a":"x","b":1}', '{"a":"x","b":true,"c":1}'),
        _follows_schema,
    ),
    Sample(
        GuideSpec("regex", "(ab)+[0-9]{2,3}"),
        ("ab12", "ababab000"),
        ("", "ab", "ab1", "a12", "ab1234", "xab12"),
        _matches("(ab)+[0-9]{2,3}"),
    ),
    Sample(
        GuideSpec("choice", '["yes", "no", "yesterday"]'),
        ("yes", "no", "yesterday"),
        ("", "ye", "maybe", "yesno"),
        lambda text: text in ("yes", "no", "yesterday"),
    ),
    Sample(
        GuideSpec("grammar", 'root ::= "a" root "b" | "ab"'),
        ("ab", "aabb"),
        ("", "aab", "abb", "ba"),
        lambda text: "a" * (len(text) // 2) + "b" * (len(text) // 2) == text != "",
    ),
    Sample(
        GuideSpec("structural_tag", json.dumps(_TAGS)),
        ("", "free < text", "so <f=a>true</f> it is"),
        ("<f=b>true</f>", "<f=a>1</f>", "<f=a>true"),
        _matches(r"(?:(?!<f).)*(?:<f=a>(?:true|false)</f>(?:(?!<f).)*)*"),
    ),
    Sample(
        GuideSpec("format", json.dumps(_FORMAT)),
        ("<p>so it is</p>true", "<p></p>false", "12"),
        ("", "<p>so", "<p>so</p>", "<p>so</p>1", "1", "12true"),
        _matches(r"<p>(?:(?!</p>).)*</p>(?:true|false)|[0-9]{2}"),
    ),
)
"""One grammar of each form."""

WRONG = (
    GuideSpec("json_schema", "{"),
    GuideSpec("json_schema", '{"type": "nothing"}'),
    GuideSpec("json_schema", '{"$ref": "#/nowhere"}'),
    GuideSpec("json_schema", '{"not": {}}'),
    GuideSpec("json_schema", "[" * 100_000),
    GuideSpec("regex", "[a"),
    GuideSpec("regex", "(a)\\1"),
    GuideSpec("choice", "yes"),
    GuideSpec("choice", "[]"),
    GuideSpec("choice", "[1]"),
    GuideSpec("grammar", "root ::= nowhere"),
    GuideSpec("grammar", "("),
    GuideSpec("structural_tag", "{}"),
    GuideSpec("format", '{"type": "sequence"}'),
    GuideSpec("structural_tag", '{"triggers": ["<f"], "structures": []}'),
)
"""Specs that every guide refuses."""
