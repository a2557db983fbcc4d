"""Guide corpus: accepted texts equal jsonschema's and re's."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gatewayd_hooks.guiding import GrammarRefused, GuideSpec, GuideStrategy
from tests.plugins.guides.guides import (
    CLOSING,
    ENDS,
    INDENTING,
    MAKERS,
    REGEXES,
    SCHEMAS,
    Tokens,
    follows_schema,
    matches,
    opened,
    schema_spec,
)
from tests.random_cases import IS_NIGHTLY

REFUSES: dict[str, set[str]] = {
    "llguidance": set(),
    "xgrammar": {
        "(?i)hello",
        "allOf of bounds",
        "allOf of objects",
        "an invoice",
        "bounds of either type",
        "ipv4",
        "keys of a pattern",
        "multiple of an integer",
        "number in a range",
        "number strictly in a range",
        "oneOf by a tag",
        "oneOf of types",
        "pattern inside",
        "typeless bounds",
    },
}
"""Cases of the corpus that a guide refuses, by name or expression."""
COMPACT = {"xgrammar": {"enum of many types", "const object"}}
"""Cases in which a guide has arrays and objects without spaces."""
_WALKS = 8 if IS_NIGHTLY else 4
_TOKENS = Tokens()
_CASES = [
    *((schema_spec(case), case["name"], case, follows_schema) for case in SCHEMAS),
    *((GuideSpec("regex", case["pattern"]), case["pattern"], case, matches) for case in REGEXES),
]


@pytest.fixture(scope="module", params=MAKERS)
def guide(request: pytest.FixtureRequest) -> Iterator[tuple[str, GuideStrategy, GuideStrategy]]:
    """A guide, and the same that lets JSON be indented."""
    who = request.param
    with opened(MAKERS[who]()) as strategy, opened(INDENTING[who]()) as indenting:
        yield who, strategy, indenting


_SHORT: dict[str, Any] = {"separators": (",", ":")}
_LAYOUTS: list[dict[str, Any]] = [{}, _SHORT]


def written(form: str, value: Any, layouts: list[dict[str, Any]]) -> list[str]:
    """What an answer may look like."""
    if form == "regex":
        return [value]
    return [json.dumps(value, ensure_ascii=False, **layout) for layout in layouts]


def takes(strategy: GuideStrategy, spec: GuideSpec, text: str) -> bool:
    tokens = [*_TOKENS.of(text), ENDS[1]]
    return strategy.compile(spec).start().accept(tokens) == len(tokens)


def test_the_corpus_is_as_large_as_it_says() -> None:
    assert len(SCHEMAS) >= 60
    assert len(REGEXES) >= 40
    assert len({case["name"] for case in SCHEMAS}) == len(SCHEMAS)


@pytest.mark.parametrize(("spec", "name", "case", "fits"), _CASES, ids=[c[1] for c in _CASES])
def test_walks_end_in_what_follows_and_handwritten_texts_are_told_apart(
    guide: tuple[str, GuideStrategy, GuideStrategy],
    spec: GuideSpec,
    name: str,
    case: dict[str, Any],
    fits: Callable[[dict[str, Any], str], bool],
) -> None:
    who, strategy, indenting = guide
    if name in REFUSES[who]:
        with pytest.raises(GrammarRefused):
            strategy.compile(spec)
        return
    grammar = strategy.compile(spec)
    draw = random.Random(name)
    likely = CLOSING if spec.form == "json_schema" else case["valid"][0]
    walks = [_TOKENS.walk(grammar, draw, likely) for _ in range(_WALKS)]
    ended = [_TOKENS.text(walk) for walk in walks if walk is not None]
    assert ended, "no walk has come to an end"
    for text in ended:
        assert fits(case, text), text
    for one, layouts in ((strategy, _LAYOUTS), (indenting, [*_LAYOUTS, {"indent": 2}])):
        for value in case["valid"]:
            kept = [_SHORT] if name in COMPACT.get(who, ()) else layouts
            for text in written(spec.form, value, kept):
                assert takes(one, spec, text), text
        for value in case["invalid"]:
            for text in written(spec.form, value, layouts):
                assert not takes(one, spec, text), text
