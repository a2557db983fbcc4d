"""Guide cost limits: expensive grammars are refused soon, and end no process."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from gatewayd_guide_llguidance.config import LlguidanceConfig
from gatewayd_guide_llguidance.strategy import Llguidance
from gatewayd_guide_xgrammar.config import XgrammarConfig
from gatewayd_guide_xgrammar.strategy import Xgrammar
from gatewayd_hooks.guiding import GrammarRefused, GuideFailed, GuideForm, GuideSpec, GuideStrategy
from tests.plugins.guides.guides import ENDS, VOCAB, Tokens, allowed, bits, opened

_SECONDS = 20.0
"""Of what takes 1.5 at most, and would take minutes; the machine may be busy."""
_TOKENS = Tokens()


@pytest.fixture(scope="module")
def guide() -> Iterator[GuideStrategy]:
    with opened(Llguidance(LlguidanceConfig())) as strategy:
        yield strategy


def _in_each_other(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def _chain(length: int, **more: Any) -> dict[str, Any]:
    """Objects of which each has the next."""
    links = {
        f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}, **more}
        for i in range(length)
    }
    return {"$defs": {**links, f"d{length}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


_REFUSED: dict[str, tuple[GuideForm, str, str]] = {
    "10,000 arrays deep": ("json_schema", '{"items":' * 10_000 + "{}" + "}" * 10_000, "65,536"),
    "100 arrays deep": ("json_schema", json.dumps(_in_each_other(100)), "deeper than 64"),
    "brackets alone": ("json_schema", "[" * 60_000, "deeper than 64"),
    "a string of brackets": ("json_schema", json.dumps("[" * 1000), "must be an object"),
    "too large": ("json_schema", json.dumps({"enum": ["x" * 70_000]}), "65,536 are allowed"),
    "too many schemas": (
        "json_schema",
        json.dumps({"properties": {f"p{i}": {} for i in range(2100)}}),
        "more than 2,000 schemas",
    ),
    "not JSON": ("json_schema", "{'a': 1}", "is not JSON"),
    "no numbers": ("json_schema", '{"const": NaN}', "NaN is not allowed"),
    "unknown type": ("json_schema", '{"type": "nothing"}', "nothing"),
    "not": ("json_schema", '{"not": {"type": "string"}}', "not"),
    "uniqueItems": ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
    "if": ("json_schema", '{"if": {"type": "string"}, "then": {"minLength": 2}}', "if"),
    "contains": ("json_schema", '{"type": "array", "contains": {}}', "contains"),
    "of old drafts": ("json_schema", '{"type": "integer", "divisibleBy": 2}', "'divisibleBy'"),
    "deep inside": (
        "json_schema",
        '{"properties": {"a": {"items": {"disallow": "string"}}}}',
        "'disallow', at /properties/a/items",
    ),
    "lenient by itself": ("json_schema", '{"not": {}, "x-guidance": {"lenient": true}}', "not"),
    "overlapping oneOf": ("json_schema", '{"oneOf": [{"const": 1}, {"minimum": 0}]}', "oneOf"),
    "format": ("json_schema", '{"type": "string", "format": "iri"}', "'iri'"),
    "no such reference": ("json_schema", '{"$ref": "#/$defs/x"}', "x"),
    "a reference elsewhere": ("json_schema", '{"$ref": "https://example.org/s"}', "example.org"),
    "nothing fits": ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}', "5"),
    "false": ("json_schema", "false", "allows nothing"),
    "a circle of allOf": (
        "json_schema",
        '{"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}, {"minimum": 1}]},'
        ' "b": {"allOf": [{"$ref": "#/$defs/a"}, {"maximum": 5}]}}, "$ref": "#/$defs/a"}',
        "circular",
    ),
    "all of all": (
        "json_schema",
        json.dumps(
            {
                "allOf": [
                    {"anyOf": [{"properties": {f"{i}{j}": {"const": j}}} for j in range(8)]}
                    for i in range(8)
                ]
            }
        ),
        "",
    ),
    "open bracket": ("regex", "[a", "unclosed"),
    "a bracket 60,000 times": ("regex", "(" * 30_000 + ")" * 30_000, ""),
    "backreference": ("regex", r"(a)\1", "backreferences"),
    "lookahead": ("regex", "a(?=b)", "look-ahead"),
    "no list": ("choice", '{"a": 1}', "list of strings"),
    "no choice": ("choice", "[]", "empty"),
    "EBNF without root": ("grammar", 'a ::= "b"', "no rule root"),
    "EBNF with a hole": ("grammar", "root ::= a", "refers to a"),
    "EBNF deep": ("grammar", "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000, "deeper"),
    "EBNF with many quantifiers": ("grammar", 'root ::= "a"' + "?" * 5000, "quantifiers"),
    "EBNF with many in brackets": (
        "grammar",
        "root ::= " + "(" * 90 + '"a"' + f"){'*' * 50}" * 90,
        "quantifiers",
    ),
    "EBNF of nonsense": ("grammar", "root ::= §", "line 1"),
    "Lark of nonsense": ("grammar", "start: (", "grammar"),
    "Lark deep": ("grammar", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000, "nested"),
    "Lark of many rules": (
        "grammar",
        "\n".join(f"r{i}: r{i + 1}" for i in range(2500)) + '\nr2500: "a"\nstart: r0',
        "2,000 rules",
    ),
    "Lark that doubles": (
        "grammar",
        "start: R0\n" + "\n".join(f"R{i}: R{i + 1} R{i + 1}" for i in range(60)) + '\nR60: "a"',
        "",
    ),
    "tag without triggers": ("structural_tag", '{"triggers": [], "structures": []}', "structures"),
    "tag with a strange key": ("structural_tag", '{"begin": "<a>"}', "'begin'"),
    "tag that nothing triggers": (
        "structural_tag",
        '{"triggers": ["<f"], "structures": [{"begin": "[a]", "schema": {}, "end": ""}]}',
        "none of the triggers",
    ),
    "tag with a bad schema": (
        "structural_tag",
        '{"triggers": ["<f"], "structures": [{"begin": "<f>", "schema": {"not": {}}, "end": ""}]}',
        "not",
    ),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_what_cannot_be_is_refused_soon(guide: GuideStrategy, name: str) -> None:
    form, text, reason = _REFUSED[name]
    began = time.monotonic()
    with pytest.raises(GrammarRefused) as caught:
        guide.compile(GuideSpec(form, text))
    assert time.monotonic() - began < _SECONDS
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 500


_HEAVY: dict[str, tuple[GuideForm, str]] = {
    "600 objects in a row": ("json_schema", json.dumps(_chain(600))),
    "the same, required": ("json_schema", json.dumps(_chain(600, required=["a"]))),
    "1,900 rules in a row": (
        "grammar",
        "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(1900)) + '\nr1900: "a"',
    ),
    "1,900 terminals in a row": (
        "grammar",
        "start: R0\n" + "\n".join(f'R{i}: R{i + 1} "a"' for i in range(1900)) + '\nR1900: "a"',
    ),
    "1,000 properties": (
        "json_schema",
        json.dumps({"properties": {f"p{i}": {} for i in range(1000)}}),
    ),
    "5,000 constants": ("json_schema", json.dumps({"enum": [f"v{i}" for i in range(5000)]})),
    "a million forced letters": ("grammar", 'start: X{1000}\nX: Y{1000}\nY: "a"'),
    "the same in an expression": ("regex", "((ab){1000}){1000}"),
    "the same in a pattern": (
        "json_schema",
        '{"type": "string", "pattern": "^((a){1000}){1000}$"}',
    ),
    "a long constant": ("json_schema", json.dumps({"const": "a" * 60_000})),
    "a long choice": ("choice", json.dumps(["a b, " * 12_000])),
    "repeated repetitions": ("regex", "(((a{1,100}){1,100}){1,100}){1,100}"),
    "(a*)*b{1000,100000}": ("regex", "(a*)*b{1000,100000}"),
    "exponential for others": ("regex", "(x+x+)+y"),
    "a far look back": ("regex", "[ab]*a[ab]{500}c"),
    "60,000 letters": ("regex", "a" * 60_000),
    "ambiguous": ("grammar", "start: e\ne: e e | e e e | /[a-z]/"),
    "empty in itself": ("grammar", 'start: start start | ""'),
}


@pytest.mark.parametrize("name", _HEAVY)
def test_what_is_heavy_is_refused_or_bounded_in_every_step(guide: GuideStrategy, name: str) -> None:
    """Also on the stack of this thread, which is smaller than that of the compiler's."""
    form, text = _HEAVY[name]
    began = time.monotonic()
    try:
        matcher = guide.compile(GuideSpec(form, text)).start()
        assert time.monotonic() - began < _SECONDS
        for _ in range(60):
            computed = time.thread_time()
            choices = sorted(allowed(matcher) - {*ENDS})
            if not choices:
                break
            matcher.accept(choices[:1])
            matcher.forced()
            assert time.thread_time() - computed < 0.3
    except (GrammarRefused, GuideFailed):
        assert time.monotonic() - began < _SECONDS


def test_one_that_reaches_a_limit_fails_alone_and_for_good(guide: GuideStrategy) -> None:
    bad = guide.compile(GuideSpec("grammar", "start: e\ne: e e | e e e | /[a-z]/")).start()
    good = guide.compile(GuideSpec("regex", "[a-z]+")).start()
    masks = np.zeros((2, VOCAB // 32), np.int32)
    (letter,) = _TOKENS.of("a")

    def go_on() -> None:
        for _ in range(1000):
            guide.fill_many([bad, good], masks)
            bad.accept([letter])

    with pytest.raises(GuideFailed, match="limit"):
        go_on()
    for ask in (bad.forced, lambda: bad.fill(masks[0]), lambda: bad.accept([letter])):
        with pytest.raises(GuideFailed):
            ask()
    good.fill(masks[1])
    assert letter in bits(masks[1])
    assert good.accept([letter, ENDS[0]]) == 2


_LEFT_BEHIND = """
import json, os, sys, time
from gatewayd_guide_llguidance.config import LlguidanceConfig
from gatewayd_guide_llguidance.strategy import Llguidance
from gatewayd_hooks.guiding import GrammarRefused, GuideSpec
from tests.plugins.guides.guides import opened

patterns = [{"type": "string", "pattern": f"a.{{{i}}}b"} for i in range(30)]
with opened(Llguidance(LlguidanceConfig(**json.loads(sys.argv[1])))) as strategy:
    began = time.monotonic()
    try:
        strategy.compile(GuideSpec("json_schema", json.dumps({"allOf": patterns})))
    except GrammarRefused as error:
        print(time.monotonic() - began, error)
    strategy.compile(GuideSpec("regex", "a+"))
    print("goes on", flush=True)
    os._exit(0)
"""
"""In a process of its own: what is left behind computes for ever, and takes all memory."""


@pytest.mark.parametrize(("settings", "limit"), [({"compile_seconds": 0.05}, 0.05), ({}, 1.5)])
def test_compiling_that_takes_too_long_is_left_behind(
    settings: dict[str, float], limit: float
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _LEFT_BEHIND, json.dumps(settings)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said, goes_on = ended.stdout.splitlines()
    seconds, _, sentence = said.partition(" ")
    assert limit <= float(seconds) < _SECONDS
    assert f"compiling it takes longer than {limit:g} s" in sentence
    assert goes_on == "goes on"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("regex", "(((a{1,100}){1,100}){1,100}){1,100}"),
        ("grammar", 'root ::= ((("a"{1,100}){1,100}){1,100}){1,100}'),
        ("json_schema", '{"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"}'),
        ("json_schema", "[" * 30_000),
        ("json_schema", '{"type": "number", "multipleOf": 3}'),
        ("json_schema", '{"$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": {"type": "integer"}}}'),
        ("json_schema", '{"type": "string", "pattern": "(?=a)a"}'),
        ("regex", "a|^b"),
    ],
)
def test_what_xgrammar_would_overlook_or_never_end_is_refused(form: GuideForm, text: str) -> None:
    with opened(Xgrammar(XgrammarConfig())) as strategy:
        began = time.monotonic()
        with pytest.raises(GrammarRefused, match=r"xgrammar|JSON|nested"):
            strategy.compile(GuideSpec(form, text))
        assert time.monotonic() - began < _SECONDS


@pytest.mark.parametrize("constant", [True, 1, 1.0, 1.5, None, "a", [], {}])
@pytest.mark.parametrize("name", ["integer", "number", "boolean", "null", "string", "array"])
def test_xgrammar_takes_constants_of_their_type_alone(constant: Any, name: str) -> None:
    is_right = Draft202012Validator({"type": name}).is_valid(constant)
    with opened(Xgrammar(XgrammarConfig())) as strategy:
        for keyword, value in (("const", constant), ("enum", [constant])):
            spec = GuideSpec("json_schema", json.dumps({"type": name, keyword: value}))
            if is_right:
                strategy.compile(spec)
            else:
                with pytest.raises(GrammarRefused, match="is not of its type"):
                    strategy.compile(spec)


def test_a_grammar_is_followed_for_ever_although_its_lexer_is_full() -> None:
    """All who follow it add states to one lexer; each alone needs a few."""
    spec = GuideSpec("regex", "[a-z]{0,3000}")
    mask = np.zeros(VOCAB // 32, np.int32)
    with opened(Llguidance(LlguidanceConfig(lexer_states=1000))) as strategy:
        grammar = strategy.compile(spec)
        long, other = grammar.start(), grammar.start()
        assert other.accept(_TOKENS.of("x" * 600)) == 600

        def go_on() -> None:
            while long.accept(_TOKENS.of("x")):
                long.fill(mask)

        with pytest.raises(GuideFailed, match="too many states"):
            go_on()
        fresh = grammar.start()
        for matcher in (fresh, other, other.fork()):
            matcher.fill(mask)
            assert matcher.accept(_TOKENS.of("y" * 20)) == 20
        other.rollback(10)
        assert other.accept(_TOKENS.of("z" * 10)) == 10
        strategy.fill_many([fresh, other], np.zeros((2, VOCAB // 32), np.int32))


def test_as_many_choices_as_a_request_may_have(guide: GuideStrategy) -> None:
    choices = [f"{i:04d}" * 3 for i in range(4095)] + ["0000"]
    grammar = guide.compile(GuideSpec("choice", json.dumps(choices)))
    for choice in (choices[0], choices[2000], choices[-1]):
        tokens = [*_TOKENS.of(choice), ENDS[0]]
        assert grammar.start().accept(tokens) == len(tokens)
    assert not grammar.start().accept(_TOKENS.of("x"))


def test_what_a_mask_allows_is_accepted_although_the_lexer_fills_up_meanwhile() -> None:
    """A token is refused without a word when there is no room for the state behind it."""
    draw = random.Random(0)
    masks = np.zeros((4, VOCAB // 32), np.int32)
    with opened(Llguidance(LlguidanceConfig(lexer_states=8000))) as strategy:
        grammar = strategy.compile(GuideSpec("regex", "(.*a){30}.{3000}"))
        followers = [grammar.start() for _ in masks]
        for _ in range(240):
            strategy.fill_many(followers, masks)
            for one, mask in zip(followers, masks, strict=True):
                may = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
                assert one.accept([int(draw.choice(may))]) == 1
