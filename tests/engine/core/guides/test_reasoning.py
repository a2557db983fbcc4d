"""Reasoning before a grammar: free text up to the mark, guided behind it.

The marks are letters that the model says by itself, so that its own reasoning comes to them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.model import embedded
from gatewayd_engine.process.config import GuideLimits, StrategyChoice
from gatewayd_engine.process.messages import LENGTH, STOP
from gatewayd_engine.process.plugin_faults import RequestRejected
from gatewayd_engine.sampling.guides.reasoning_marks import ReasoningBoundary
from gatewayd_engine.sampling.guides.reasoning_matcher import ReasoningMatcher
from gatewayd_engine.sampling.guides.token_bytes import TokenBytes
from gatewayd_hooks.parsing import Bounds
from tests.engine.core.fake_drafters import Always, Guess, guess_with
from tests.engine.core.fake_guide import (
    ENDS,
    LISTS,
    VOCAB,
    Listed,
    ListedGrammar,
    allowed,
    choice_of,
    spelled,
    text_of,
    with_guide,
)
from tests.engine.core.prompts import PROMPTS

Make = Callable[..., Any]
Case = tuple[int, tuple[str, ...], tuple[str, str]]
CASES: list[Case] = [
    (1, LISTS[1], ("", "ODE_break")),  # of three tokens
    (2, LISTS[2], ("", "try:")),  # that ends within a token, before a line's end
    (2, LISTS[0], ("", " None\n")),
    (3, LISTS[3], ("'\n", "str(")),  # begun by the model
    (2, LISTS[2], ("]^_'", "num")),
    (0, LISTS[1], ("L", "flow")),
    (3, LISTS[0], ("<think>", "</think>")),  # not begun
    (1, ("ZJK", "Zebra"), ("ZJKL", "\n#")),  # the answer looks like the mark at first
]


def may_come(strings: tuple[str, ...], marks: tuple[str, str], tokens: Sequence[int]) -> list[int]:
    """The tokens that may come next, by looking at all that was said for each of them."""
    begin, end = marks
    said = text_of(tokens)
    begun = said.startswith(begin)
    is_plain = not begun and any(one.startswith(said) for one in strings)
    for count in range(1, len(tokens) + 1):
        text = text_of(tokens[:count])
        if text.startswith(begin) and end in text[len(begin) :]:
            return list(allowed(strings, text_of(tokens[count:])))
    found = set(allowed(strings, said)) if is_plain else set()
    for token, piece in enumerate(spelled()):
        text = said + piece
        if token in ENDS or (begin and not begun and not piece):
            continue
        if begin.startswith(text) and begin != text:
            found.add(token)
        elif text.startswith(begin):
            _, closed, rest = text[len(begin) :].partition(end)
            if not closed or not rest.strip():
                found.add(token)
    return sorted(found)


@pytest.fixture(scope="module")
def wanted(oracle: Callable[[Any], Any]) -> list[list[int]]:
    """The right tokens of each case, by transformers."""
    model = oracle(embedded.folder("nano"))
    return [by_hand(model, PROMPTS[at], strings, marks) for at, strings, marks in CASES]


def by_hand(
    model: Any, prompt: Sequence[int], strings: tuple[str, ...], marks: tuple[str, str]
) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < 60:
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, -1]
        may = torch.tensor(may_come(strings, marks, tokens))
        token = int(may[logits[may].argmax()])
        if token in ENDS:
            return tokens
        tokens.append(token)
    raise AssertionError(f"{marks} do not come: {text_of(tokens)!r}")


def test_the_cases_are_what_they_say(wanted: list[list[int]]) -> None:
    texts = [text_of(tokens) for tokens in wanted]
    for text, (_, strings, (begin, end)) in zip(texts, CASES, strict=True):
        assert text.endswith(strings)
        assert (end in text) == (text not in strings)
        assert text.startswith(begin) or text in strings
    assert texts[6] in LISTS[0]
    assert sum(end in text for text, (_, _, (_, end)) in zip(texts, CASES, strict=True)) >= 6


def check(engine: Any, wanted: list[list[int]], **fields: Any) -> None:
    """All of them at once, beside one that says what it likes."""
    ids = [
        engine.submit(
            PROMPTS[at], max_tokens=60, guide=choice_of(*strings), guide_behind=marks, **fields
        )
        for at, strings, marks in CASES
    ]
    free = engine.submit(PROMPTS[3], max_tokens=30, ignore_eos=True)
    done = engine.run()
    for asked, tokens, case in zip(ids, wanted, CASES, strict=True):
        for sequence in asked:
            assert done[sequence].finished.error is None, case
            assert text_of(done[sequence].tokens) == text_of(tokens), case
            assert done[sequence].tokens == tokens
            assert done[sequence].finished.reason == STOP
    assert len(done[free[0]].tokens) == 30
    assert engine.core.stats.faults == 0


def test_tokens_equal_transformers(make_engine: Make, wanted: list[list[int]]) -> None:
    engine = with_guide(make_engine())
    check(engine, wanted)
    check(engine, wanted, n=3)


@pytest.mark.usefixtures("overlapping")
def test_with_steps_that_overlap(make_engine: Make, wanted: list[list[int]]) -> None:
    check(with_guide(make_engine()), wanted, n=2)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_with_too_few_pages(make_engine: Make, wanted: list[list[int]], preemption: str) -> None:
    engine = make_engine(
        page_size=2, kv_pages=72, max_batch_tokens=32, preemption=StrategyChoice(preemption)
    )
    check(with_guide(engine), wanted, n=2)
    assert engine.core.stats.preemptions


@pytest.mark.parametrize("drafter", ["ngram", "forced"])
def test_with_drafts(make_engine: Make, wanted: list[list[int]], drafter: str) -> None:
    check(with_guide(make_engine(drafter=StrategyChoice(drafter))), wanted)


@pytest.mark.parametrize(("shape", "kind"), [("chain", Guess), ("tree", Guess), ("chain", Always)])
def test_with_drafts_across_the_mark(
    make_engine: Make, wanted: list[list[int]], shape: str, kind: type[Guess]
) -> None:
    known = [[*PROMPTS[case[0]], *tokens] for case, tokens in zip(CASES, wanted, strict=True)]
    engine = make_engine(drafter=StrategyChoice("ngram"), spec_controller=StrategyChoice("fixed"))
    guess_with(engine, kind(known, 0.9, shape))
    check(with_guide(engine), wanted)
    assert engine.core.stats.accepted_tokens


def test_with_a_real_guide(make_engine: Make) -> None:
    """Sampled reasoning is as it comes, and what stands behind it has its form."""
    engine = make_engine(guide=StrategyChoice("llguidance"), drafter=StrategyChoice("ngram"))
    ids = engine.submit(
        PROMPTS[2],
        n=8,
        max_tokens=200,
        temperature=1.0,
        seed=3,
        guide=("regex", "[a-f]{4}-[0-9]{3}"),
        guide_behind=("", "="),
    )
    done = engine.run()
    ended = [done[one].tokens for one in ids if done[one].finished.reason == STOP]
    assert len(ended) >= 4
    for tokens in ended:
        thought, _, answer = text_of(tokens).partition("=")
        assert thought
        assert len(answer.strip()) == 8
        assert set(answer.strip()) <= set("abcdef0123456789-")


def test_reasoning_counts_and_has_no_end_but_its_mark(make_engine: Make) -> None:
    engine = with_guide(make_engine())
    (sequence,) = engine.submit(
        PROMPTS[2],
        max_tokens=40,
        guide=choice_of("yes"),
        guide_behind=("", "</think>"),
        logit_bias=[(0, 100.0)],
    )
    answer = engine.run()[sequence]
    assert answer.finished.reason == LENGTH
    assert len(answer.tokens) == 40
    assert not {*answer.tokens} & {*ENDS}


def test_a_mark_that_is_empty_is_refused(make_engine: Make) -> None:
    with pytest.raises(RequestRejected, match="guide_behind"):
        make_engine().submit(PROMPTS[0], max_tokens=9, guide=choice_of("a"), guide_behind=("", ""))


@pytest.fixture(scope="module")
def letters() -> TokenBytes:
    return TokenBytes(str(embedded.folder("nano")), VOCAB, ENDS)


@pytest.mark.parametrize("marks", [("<a>", "</a>"), ("", "</a>"), ("b", "aab"), ("a", "a")])
def test_masks_are_right_wherever_it_stands(letters: TokenBytes, marks: tuple[str, str]) -> None:
    """Tokens at random, taken back at random, against a fresh look at all of them."""
    strings = ("ab", "aaba", "<a", "")
    grammar, boundary = ListedGrammar(Listed(), strings), ReasoningBoundary(Bounds(*marks), letters)
    bits = [token for token, text in enumerate(spelled()) if text and set(text) <= set("<a>/b")]
    draw, mask = random.Random(str(marks)), np.zeros(128, np.int32)
    for _ in range(30):
        thinking, tokens = ReasoningMatcher(grammar, boundary), list[int]()
        for _ in range(12):
            thinking.fill(mask)
            may = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            is_over = any(token in ENDS for token in tokens)
            assert may.tolist() == (list(ENDS) if is_over else may_come(strings, marks, tokens))
            more = [draw.choice([*bits, *(may[:1].tolist())]) for _ in range(draw.randint(1, 3))]
            count = thinking.accept(more)
            assert count == 0 or more[0] in may
            tokens += more[:count]
            back = draw.randint(0, min(2, len(tokens)))
            thinking.rollback(back)
            del tokens[len(tokens) - back :]


def test_special_tokens_are_seen_where_they_are_the_marks(letters: TokenBytes) -> None:
    boundary = ReasoningBoundary(Bounds("", "</tool_call>"), letters)
    assert boundary.step(0, 4) == -1
    other = ReasoningBoundary(Bounds("", "call>"), letters)
    assert other.step(0, 4) == 0
    with pytest.raises(OSError, match="tokenizer"):
        ReasoningBoundary(Bounds("", "x"), TokenBytes("/nowhere", 10, ENDS))


def test_much_reasoning_is_followed_again_at_once(make_engine: Make, letters: TokenBytes) -> None:
    boundary = ReasoningBoundary(Bounds("", "</think>"), letters)
    thinking = ReasoningMatcher(ListedGrammar(Listed(), ("yes",)), boundary)
    tokens = [random.Random(5).randrange(6, VOCAB) for _ in range(30_000)]
    began = time.thread_time()
    assert thinking.accept(tokens) == len(tokens)
    assert time.thread_time() - began < GuideLimits().ahead_seconds / 2
    assert thinking.guided is None
