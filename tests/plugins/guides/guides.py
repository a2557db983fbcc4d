"""Corpus of schemas and expressions, and walks through a guide's allowed tokens."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator, FormatChecker
from numpy.typing import NDArray

from gatewayd_engine.model import embedded
from gatewayd_guide_llguidance.config import LlguidanceConfig
from gatewayd_guide_llguidance.strategy import Llguidance
from gatewayd_guide_xgrammar.config import XgrammarConfig
from gatewayd_guide_xgrammar.strategy import Xgrammar
from gatewayd_hooks.guiding import Grammar, GuideForm, GuideSpec, GuideStrategy, Matcher
from gatewayd_hooks.testing.fakes import engine_resources

CORPUS = json.loads(Path(__file__).with_name("guide_corpus.json").read_text("utf-8"))
SCHEMAS: list[dict[str, Any]] = CORPUS["schemas"]
REGEXES: list[dict[str, Any]] = CORPUS["regexes"]
VOCAB = 4128  # more than the tokenizer has
ENDS = (0, 2)
TOOL_CALL, TOOL_CALL_END = 3, 4
CLOSING = '"}],'
_LONGEST = 400


def schema_spec(case: dict[str, Any]) -> GuideSpec:
    return GuideSpec("json_schema", json.dumps(case["schema"]))


def follows_schema(case: dict[str, Any], text: str) -> bool:
    validator = Draft202012Validator(case["schema"], format_checker=FormatChecker())
    return bool(validator.is_valid(json.loads(text)))


def matches(case: dict[str, Any], text: str) -> bool:
    return re.fullmatch(case["pattern"], text) is not None


class Tokens:
    """What the tokens of the embedded model spell."""

    def __init__(self) -> None:
        file = json.loads((embedded.folder() / "tokenizer.json").read_text("utf-8"))
        plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
        strange = iter(range(256, 512))
        letters = {chr(b if b in plain else next(strange)): b for b in range(256)}
        special = {token["id"] for token in file["added_tokens"]}
        self.spelled = [b""] * len(file["model"]["vocab"])
        for word, token in file["model"]["vocab"].items():
            if token not in special:
                self.spelled[token] = bytes(letters[letter] for letter in word)
        self._single = {text[0]: i for i, text in enumerate(self.spelled) if len(text) == 1}

    def of(self, text: str) -> list[int]:
        """A text, a byte a token."""
        return [self._single[byte] for byte in text.encode()]

    def text(self, tokens: list[int]) -> str:
        return b"".join(self.spelled[token] for token in tokens).decode()

    def walk(
        self, grammar: Grammar, draw: random.Random, likely: str = CLOSING
    ) -> list[int] | None:
        """Tokens that a guide allows, at random, without the end; None if it does not come.

        Args:
            grammar: to keep.
            draw: chooses.
            likely: letters that are chosen more often, or walks would seldom end.
        """
        matcher, found = grammar.start(), list[int]()
        favoured = self.of(likely)
        while len(found) < _LONGEST:
            choices = allowed(matcher)
            if not choices.isdisjoint(ENDS) and (draw.random() < 0.3 or choices <= {*ENDS}):
                return found
            likely_ones = [token for token in favoured if token in choices]
            chance = draw.random() < 0.5
            pool = likely_ones if likely_ones and chance else sorted(choices - {*ENDS})
            token = draw.choice(pool)
            assert matcher.accept([token]) == 1
            found.append(token)
        return None


def allowed(matcher: Matcher) -> set[int]:
    mask = np.full(-(-VOCAB // 32), -1, np.int32)
    matcher.fill(mask)
    return set(bits(mask))


def bits(mask: NDArray[np.int32]) -> list[int]:
    found: list[int] = np.flatnonzero(
        np.unpackbits(mask.view(np.uint8), bitorder="little")
    ).tolist()
    return found


@contextmanager
def opened(guide: GuideStrategy) -> Iterator[GuideStrategy]:
    """A guide for the embedded model."""
    try:
        guide.open(
            engine_resources(vocab_size=VOCAB, eos_token_ids=ENDS, folder=str(embedded.folder()))
        )
        yield guide
    finally:
        guide.close()


TOKENS = Tokens()
_STRING = re.compile(r'"(?:\\.|[^"\\])*"')


def longest_blank(text: str) -> int:
    """Of the spaces and line ends in a row that stand between the parts of a JSON text."""
    return max((len(run) for run in re.findall(r"\s+", _STRING.sub('""', text))), default=0)


_MARKS = {"«": TOOL_CALL, "»": TOOL_CALL_END}
MAKERS: dict[str, Callable[[], GuideStrategy]] = {
    "llguidance": lambda: Llguidance(LlguidanceConfig()),
    "xgrammar": lambda: Xgrammar(XgrammarConfig()),
}
INDENTING: dict[str, Callable[[], GuideStrategy]] = {
    "llguidance": lambda: Llguidance(LlguidanceConfig(any_whitespace=True)),
    "xgrammar": lambda: Xgrammar(XgrammarConfig(any_whitespace=True)),
}
"""The same, of which JSON may have all white space."""


def tokens_of(text: str) -> list[int]:
    """A text in which « and » stand for the special tokens <tool_call> and </tool_call>."""
    parts = re.split("([«»])", text)
    return [t for part in parts for t in ([_MARKS[part]] if part in _MARKS else TOKENS.of(part))]


def takes(guide: GuideStrategy, form: GuideForm, grammar: str, text: str) -> bool:
    tokens = [*tokens_of(text), ENDS[1]]
    return guide.compile(GuideSpec(form, grammar)).start().accept(tokens) == len(tokens)
