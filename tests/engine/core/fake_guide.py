"""Fake guide over lists of allowed strings, and its expected masks by hand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from gatewayd_engine.model import embedded
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.guiding import GrammarRefused, GuideSpec

VOCAB, ENDS = 4096, (0, 2)
PROMPT = [7, *range(20, 60)]


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(embedded.folder("nano") / "tokenizer.json"))


@cache
def spelled() -> tuple[str, ...]:
    """What each token of nano says; nothing for special ones and parts of characters."""
    known = tokenizer().decode_batch([[i] for i in range(VOCAB)], skip_special_tokens=True)
    return tuple("" if "\ufffd" in text else text for text in known)


def text_of(tokens: Sequence[int]) -> str:
    return "".join(spelled()[token] for token in tokens)


@cache
def allowed(strings: tuple[str, ...], said: str) -> tuple[int, ...]:
    """The tokens that may come after what was said, in order, if it is to become one of them."""
    found = {
        token
        for token, text in enumerate(spelled())
        if text and any(one.startswith(said + text) for one in strings)
    }
    return tuple(sorted(found | (set(ENDS) if said in strings else set())))


class ListedMatcher:
    """Stands behind some tokens."""

    def __init__(self, guide: Listed, strings: tuple[str, ...], tokens: list[int]) -> None:
        self.guide = guide
        self.strings = strings
        self.tokens = tokens

    def _allowed(self) -> tuple[int, ...]:
        if any(token in ENDS for token in self.tokens):
            return ENDS
        return allowed(self.strings, text_of(self.tokens))

    def accept(self, tokens: Sequence[int]) -> int:
        self.guide.called("accept", self)
        for count, token in enumerate(tokens):
            if token not in self._allowed():
                return count
            self.tokens.append(token)
        return len(tokens)

    def rollback(self, count: int) -> None:
        self.guide.called("rollback", self)
        assert count <= len(self.tokens)
        del self.tokens[len(self.tokens) - count :]

    def fill(self, mask: NDArray[np.int32]) -> None:
        self.guide.called("fill", self)
        bits = np.zeros(VOCAB, np.bool_)
        bits[list(self._allowed())] = True
        mask[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def forced(self) -> Sequence[int]:
        self.guide.called("forced", self)
        chain: list[int] = []
        while len(one := self._allowed()) == 1:
            chain += one
            self.tokens += one
        del self.tokens[len(self.tokens) - len(chain) :]
        return chain

    def fork(self) -> ListedMatcher:
        return ListedMatcher(self.guide, self.strings, list(self.tokens))


class ListedGrammar:
    def __init__(self, guide: Listed, strings: tuple[str, ...]) -> None:
        self.guide = guide
        self.strings = strings

    def start(self) -> ListedMatcher:
        return ListedMatcher(self.guide, self.strings, [])


class Listed:
    """A guide for choices.

    Attributes:
        compiled: specs that were asked for.
        gate: compiling waits for it.
        called: told of each call of a matcher; may raise.
        is_closed: whether it was closed.
    """

    def __init__(self) -> None:
        self.compiled: list[GuideSpec] = []
        self.gate = threading.Event()
        self.gate.set()
        self.called: Callable[[str, ListedMatcher], None] = lambda method, matcher: None
        self.is_closed = False

    def open(self, resources: Any) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    def compile(self, spec: GuideSpec) -> ListedGrammar:
        self.compiled.append(spec)
        assert self.gate.wait(60)
        strings = json.loads(spec.text)
        if not strings:
            raise GrammarRefused("it has no choice")
        if strings == ["raise"]:
            raise ValueError("not to my taste")
        return ListedGrammar(self, tuple(strings))

    def fill_many(self, matchers: Sequence[ListedMatcher], masks: NDArray[np.int32]) -> None:
        for matcher, mask in zip(matchers, masks, strict=True):
            matcher.fill(mask)


def choice_of(*strings: str) -> tuple[str, str]:
    """What ``SamplingParams.guide`` is for one of these strings."""
    return "choice", json.dumps(strings)


def with_guide(engine: Any, guide: Any | None = None) -> Any:
    """An engine that compiles with the guide of this file."""
    engine.core.strategies.replace_guide(StrategyChoice("listed"), guide or Listed())
    return engine


LISTS = [
    ("yes", "no", "maybe"),
    ("The answer is forty-two.", "The answer is unknown.", "I do not know."),
    ('{"name": "alpha", "size": 1}', '{"name": "beta", "size": 22}', '{"name": "gamma"}'),
    ("import asyncio", "import asyncio.streams", "from __future__ import annotations"),
]


def by_hand(model: Any, prompt: Sequence[int], strings: tuple[str, ...]) -> list[int]:
    """Greedy tokens of a model in transformers, of those that are allowed, one after the other."""
    tokens: list[int] = []
    while True:
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, -1]
        may = allowed(strings, text_of(tokens))
        token = max(may, key=lambda one: float(logits[one]))
        if token in ENDS:
            return tokens
        tokens.append(token)
