"""Guide details: marks, ends, whitespace, other grammars."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from gatewayd_guide_llguidance.config import LlguidanceConfig
from gatewayd_guide_llguidance.strategy import Llguidance
from gatewayd_hooks.guiding import GuideForm, GuideSpec, GuideStrategy, Matcher
from tests.plugins.guides.guides import (
    CLOSING,
    ENDS,
    INDENTING,
    MAKERS,
    TOKENS,
    VOCAB,
    allowed,
    longest_blank,
    opened,
    takes,
)

_TRUE = {"const": True}


@pytest.fixture(scope="module", params=MAKERS)
def guide(request: pytest.FixtureRequest) -> Iterator[GuideStrategy]:
    with opened(MAKERS[request.param]()) as strategy:
        yield strategy


def tag(**changes: Any) -> str:
    return json.dumps(
        {
            "triggers": ["<tool_call>", "<f"],
            "structures": [
                {"begin": "<tool_call>\n", "schema": _TRUE, "end": "\n</tool_call>"},
                {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
                {"begin": "<f=b>", "schema": {"enum": ["x?(.*)"]}, "end": ""},
            ],
        }
        | changes
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "free text, a < b\n\nand more",
        "so: <tool_call>\ntrue\n</tool_call>",
        "so: «\ntrue\n»",
        "«\ntrue\n</tool_call>",
        '<f=a>12</f><f=b>"x?(.*)" «\ntrue\n» the end <',
        '<f=b>"x?(.*)"',
    ],
)
def test_marks_are_the_special_token_or_its_letters(guide: GuideStrategy, text: str) -> None:
    assert takes(guide, "structural_tag", tag(), text)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<f",
        "«",
        "a « b",
        "<tool_call>\nfalse\n</tool_call>",
        "«\ntrue\n<tool_call>",
        "<f=c>1</f>",
        "<f=a>true</f>",
        "<f=a>1",
        'text <f=b>"y"',
    ],
)
def test_no_structure_is_begun_and_not_kept(guide: GuideStrategy, text: str) -> None:
    assert not takes(guide, "structural_tag", tag(), text)


def test_at_least_one_begins_at_once_and_more_may_follow(guide: GuideStrategy) -> None:
    one = tag(at_least_one=True)
    assert not takes(guide, "structural_tag", one, "")
    assert not takes(guide, "structural_tag", one, "text")
    assert not takes(guide, "structural_tag", one, "text «\ntrue\n»")
    for text in ("«\ntrue\n»", "<f=a>1</f>", "<f=a>1</f> text", "«\ntrue\n»<f=a>1</f>"):
        assert takes(guide, "structural_tag", one, text), text


def test_nothing_follows_the_first_where_it_is_to_stop(guide: GuideStrategy) -> None:
    first = tag(stop_after_first=True)
    for text in ("", "text", "text «\ntrue\n»", "<f=a>1</f>"):
        assert takes(guide, "structural_tag", first, text), text
    assert not takes(guide, "structural_tag", first, "<f=a>1</f> ")
    only = tag(stop_after_first=True, at_least_one=True)
    assert takes(guide, "structural_tag", only, "<f=a>1</f>")
    assert not takes(guide, "structural_tag", only, "")
    assert not takes(guide, "structural_tag", only, "<f=a>1</f><f=a>1</f>")


def test_nothing_but_structures(guide: GuideStrategy) -> None:
    for is_single, must in ((False, True), (False, False), (True, True)):
        only = tag(at_least_one=must, stop_after_first=is_single, separator="; ")
        for text in ("<f=a>1</f>", "«\ntrue\n»", "<tool_call>\ntrue\n</tool_call>"):
            assert takes(guide, "structural_tag", only, text), text
            for other in ("<f=b>1", '<f=b>"x?(.*)"', "«\ntrue\n»"):
                is_right = not is_single and other != "<f=b>1"
                assert takes(guide, "structural_tag", only, f"{text}; {other}") == is_right
            for wrong in (f" {text}", f"{text} ", f"{text}; ", f"{text}\n{text}", f"{text}x"):
                assert not takes(guide, "structural_tag", only, wrong), wrong
        assert takes(guide, "structural_tag", only, "") != must


def test_a_trigger_that_begins_another(guide: GuideStrategy) -> None:
    nested = json.dumps(
        {
            "triggers": ["<f", "<fn>"],
            "structures": [
                {"begin": "<f>", "schema": {"const": 1}, "end": "</f>"},
                {"begin": "<fn>", "schema": {"const": 2}, "end": "</fn>"},
            ],
        }
    )
    assert takes(guide, "structural_tag", nested, "a<f>1</f>b<fn>2</fn>")
    assert not takes(guide, "structural_tag", nested, "<fn>1</fn>")


@pytest.mark.parametrize(
    ("form", "grammar"),
    [
        ("regex", "say <tool_call> or <\\|im_end\\|>"),
        ("choice", '["say <tool_call> or <|im_end|>"]'),
        ("grammar", 'root ::= "say <tool_call> or <|im_end|>"'),
        ("json_schema", '{"const": "say <tool_call> or <|im_end|>"}'),
    ],
)
def test_letters_of_special_tokens_are_spelled_by_others(
    guide: GuideStrategy, form: GuideForm, grammar: str
) -> None:
    """What is forced is spelled as the tokenizer would, but for the tokens that mean more."""
    matcher = guide.compile(GuideSpec(form, grammar)).start()
    found = list[int]()
    while not (choices := allowed(matcher)) <= {*ENDS}:
        assert choices.isdisjoint(range(6))
        found.append(min(choices))
        assert matcher.accept(found[-1:]) == 1
    assert TOKENS.text(found).strip('"') == "say <tool_call> or <|im_end|>"


def test_no_text_is_spelled_by_special_tokens_or_by_none(guide: GuideStrategy) -> None:
    for form, grammar in (("regex", r"(.|\n)*"), ("json_schema", '{"type": "string"}')):
        matcher = guide.compile(GuideSpec(form, grammar)).start()  # type: ignore[arg-type]
        matcher.accept(TOKENS.of('"'))
        choices = allowed(matcher) - {*ENDS}
        assert len(choices) > 3000
        assert min(choices) > 5
        assert max(choices) < len(TOKENS.spelled)


def test_every_end_token_ends_and_only_where_it_may(guide: GuideStrategy) -> None:
    for end in ENDS:
        matcher = guide.compile(GuideSpec("regex", "ab")).start()
        assert matcher.accept([end]) == 0
        assert matcher.accept([*TOKENS.of("ab"), end, *TOKENS.of("a")]) == 3
        assert allowed(matcher) == {*ENDS}
        assert list(matcher.forced()) == []
        matcher.rollback(2)
        assert not allowed(matcher) & {*ENDS}
        assert matcher.accept([*TOKENS.of("b"), end, end]) == 3


@pytest.mark.parametrize("token", [-1, VOCAB, VOCAB - 1, 1 << 31])
def test_a_token_that_does_not_exist_is_not_accepted(guide: GuideStrategy, token: int) -> None:
    matcher = guide.compile(GuideSpec("regex", r"(.|\n)*")).start()
    assert matcher.accept([*TOKENS.of("a"), token]) == 1
    assert matcher.accept(TOKENS.of("b")) == 1


_ONE = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'


@pytest.mark.parametrize("name", INDENTING)
def test_whitespace_of_json_may_be_free_and_is_bounded(name: str) -> None:
    with opened(INDENTING[name]()) as guide:
        for text in ('{"a":1}', '{ "a" : 1 }', '{\n\t"a": 1\r\n}', "{" + " " * 40 + '"a":1}'):
            assert takes(guide, "json_schema", _ONE, text), text
        for text in ("{" + " " * 41 + '"a":1}', '{"a":' + "\n" * 41 + "1}", ' {"a":1}'):
            assert not takes(guide, "json_schema", _ONE, text), text


def test_json_is_compact_in_either_way_of_writing(guide: GuideStrategy) -> None:
    value = {"a": 1, "b": [1, {"c": "x  y"}]}
    for form, schema in (("json_schema", _ONE), ("json_object", "")):
        for text in (json.dumps(value), json.dumps(value, separators=(",", ":")), '{\n"a": 1}'):
            assert takes(guide, form, schema, text), text  # type: ignore[arg-type]
        for text in ('{"a":  1}', '{\n "a": 1}', '{"a": 1  }', ' {"a": 1}'):
            assert not takes(guide, form, schema, text), text  # type: ignore[arg-type]
    call = json.dumps(
        {
            "triggers": ["<"],
            "structures": [{"begin": "<f>", "schema": json.loads(_ONE), "end": "</f>"}],
        }
    )
    assert takes(guide, "structural_tag", call, 'Two  blanks: <f>{"a": 1}</f>')
    assert not takes(guide, "structural_tag", call, '<f>{"a":  1}</f>')


@pytest.mark.parametrize("name", INDENTING)
def test_a_request_may_ask_for_compact_json(name: str) -> None:
    call = {"triggers": ["<"], "structures": [{"begin": "<", "schema": True, "end": ">"}]}
    part = {"type": "json_schema", "json_schema": {"type": "object"}}
    with opened(INDENTING[name]()) as guide:
        for form, text, begin, end in (
            ("json_schema", _ONE, "", ""),
            ("json_object", "", "", ""),
            ("structural_tag", json.dumps(call), "<", ">"),
            ("format", json.dumps({"type": "sequence", "elements": [part]}), "", ""),
        ):
            for is_compact in (False, True):
                spec = GuideSpec(form, text, is_compact)  # type: ignore[arg-type]
                grammar = guide.compile(spec)
                for said, is_right in (('{"a": 1}', True), ('{"a":  1}', not is_compact)):
                    tokens = [*TOKENS.of(begin + said + end), ENDS[1]]
                    assert (grammar.start().accept(tokens) == len(tokens)) is is_right, spec


def test_who_likes_blanks_finds_no_two_of_them(guide: GuideStrategy) -> None:
    spec = GuideSpec("json_schema", json.dumps({"items": {"type": "object"}, "type": "array"}))
    for one in (spec, GuideSpec("json_object", "")):
        grammar, found = guide.compile(one), 0
        for seed in range(40):
            tokens = TOKENS.walk(grammar, random.Random(seed), " \n\t\r" + CLOSING)
            if tokens is not None:
                text = TOKENS.text(tokens)
                json.loads(text)
                assert longest_blank(text) <= 1, text
                found += 1
        assert found > 20


def test_properties_come_in_the_order_of_the_schema(guide: GuideStrategy) -> None:
    schema = json.dumps(
        {"type": "object", "properties": {"b": _TRUE, "a": _TRUE}, "required": ["a", "b"]}
    )
    assert takes(guide, "json_schema", schema, '{"b": true, "a": true}')
    assert not takes(guide, "json_schema", schema, '{"a": true, "b": true}')


_EBNF = r"""
# A sum
root  ::= sum (";" ws sum){0,2}
sum   ::= term (ws [+-] ws term)*
term  ::= num | "(" sum ")"
        | "pi" | "\u00e9\x41\n"
num   ::= [0-9]+ ("." [0-9]{1,2})?
ws    ::= [ \t]*
"""


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("1", True),
        ("(1+2.25) - pi", True),
        ("((1)) ; 2", False),
        ("((1)); 2;3", True),
        ("éA\n", True),
        ("1.234", False),
        ("(1", False),
        ("1;1;1;1", False),
        ("", False),
    ],
)
def test_ebnf_as_it_is_written(guide: GuideStrategy, text: str, is_right: bool) -> None:
    assert takes(guide, "grammar", _EBNF, text) is is_right


def test_ebnf_that_greedy_lexemes_would_misread(guide: GuideStrategy) -> None:
    assert takes(guide, "grammar", 'root ::= word* "end"\nword ::= [a-z]', "blendend")
    assert takes(guide, "grammar", 'root ::= "a"* "ab"', "aaab")
    assert not takes(guide, "grammar", 'root ::= "a"* "ab"', "aaa")


@pytest.mark.parametrize(
    ("text", "is_right"), [("let x = 12", True), ("let  y=1", True), ("let 1 = x", False)]
)
def test_lark(guide: GuideStrategy, text: str, is_right: bool) -> None:
    lark = 'start: "let" NAME "=" INT\nNAME: /[a-z]+/\nINT: /[0-9]+/\n%ignore / +/'
    assert takes(guide, "grammar", lark, text) is is_right


def test_single_quotes_are_quotes_of_ebnf_and_specials_of_lark_have_names() -> None:
    with opened(Llguidance(LlguidanceConfig())) as guide:
        assert takes(guide, "grammar", "root ::= 'a\"' | \"b'\"", 'a"')
        assert takes(guide, "grammar", "root ::= 'a\"' | \"b'\"", "b'")
        _check_special_tokens_of_lark(guide)


def _check_special_tokens_of_lark(guide: GuideStrategy) -> None:
    lark = 'start: <tool_call> "a<tool_call>" </tool_call>'
    assert takes(guide, "grammar", lark, "«a<tool_call>»")
    assert not takes(guide, "grammar", lark, "<tool_call>a<tool_call></tool_call>")


def test_choices_of_which_one_begins_another(guide: GuideStrategy) -> None:
    choices = json.dumps(["a", "ab", "", 'a"b\\\n', "你好"], ensure_ascii=False)
    for text in ("a", "ab", "", 'a"b\\\n', "你好"):
        assert takes(guide, "choice", choices, text), text
    for text in ("b", "aba", "你", 'a"b'):
        assert not takes(guide, "choice", choices, text), text


def test_a_matcher_lives_on_when_the_guide_is_closed() -> None:
    with opened(Llguidance(LlguidanceConfig())) as strategy:
        matcher: Matcher = strategy.compile(GuideSpec("regex", "ab")).start()
    assert matcher.accept([*TOKENS.of("ab"), ENDS[0]]) == 3
