"""Trained draft heads: same answers in fewer steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from tokenizers import Tokenizer

from gatewayd_engine.model import embedded
from gatewayd_engine.offline.quality.texts import bundled
from gatewayd_engine.process.config import StrategyChoice

Make = Callable[..., Any]
KINDS = ("medusa", "eagle")
TURN = "<|im_start|>assistant\n"
LEAST = 1.5
"""Tokens that each verification must give on average."""


@cache
def chats() -> list[list[int]]:
    """Sixteen prompts about symbols that no training row is about."""
    tokenizer = Tokenizer.from_file(str(embedded.folder("nano") / "tokenizer.json"))
    # What quality is measured on is held out, and so it is from what heads were trained on.
    texts = [text.text for text in bundled() if text.kind == "chats"][:16]
    texts = [text[: text.rindex(TURN) + len(TURN)] for text in texts]
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def speculating(make_engine: Make, kind: str, **fields: Any) -> Any:
    return make_engine(
        drafter=StrategyChoice(kind),
        spec_controller=StrategyChoice("fixed", {"drafts": 8}),
        **fields,
    )


def answers(engine: Any, prompts: Sequence[list[int]], **fields: Any) -> list[list[int]]:
    ids = [
        engine.submit(prompt, max_tokens=32, **({"seed": i} if fields else {}), **fields)[0]
        for i, prompt in enumerate(prompts)
    ]
    done = engine.run()
    assert all(done[i].finished.error is None for i in ids)
    assert engine.core.strategies.num_faults == 0
    return [done[i].tokens for i in ids]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fields", [{}, {"temperature": 0.9}], ids=["greedy", "seeded"])
@pytest.mark.parametrize("at_once", [1, 8])
def test_answers_are_those_without_drafts(
    make_engine: Make, kind: str, fields: dict[str, Any], at_once: int
) -> None:
    prompts = chats()[: 3 if at_once == 1 else 10]
    plain = answers(make_engine(max_running=at_once), prompts, **fields)
    engine = speculating(make_engine, kind, max_running=at_once)
    assert answers(engine, prompts, **fields) == plain
    assert engine.core.stats.accepted_tokens > 4


@pytest.mark.parametrize("kind", KINDS)
def test_with_beginnings_from_the_cache(make_engine: Make, kind: str) -> None:
    """Their hidden states are never seen; the whole of a prompt is found at the second time."""
    prompts = chats()[:8]
    plain = answers(make_engine(), prompts)
    engine = speculating(make_engine, kind, prefix_cache=StrategyChoice("radix"), page_size=4)
    assert answers(engine, prompts) == plain
    before = engine.core.stats.accepted_tokens
    assert answers(engine, prompts) == plain
    assert engine.core.stats.prefix_hits > 100
    assert engine.core.stats.accepted_tokens - before > before / 2


@pytest.mark.parametrize("kind", KINDS)
def test_with_few_pages_and_preemption(make_engine: Make, kind: str) -> None:
    prompts = chats()[:8]
    plain = answers(make_engine(), prompts)
    engine = speculating(make_engine, kind, kv_pages=28, page_size=8)
    assert answers(engine, prompts) == plain
    assert engine.core.stats.preemptions > 0
    assert engine.core.stats.accepted_tokens > 20


def tokens_per_verification(engine: Any) -> float:
    """What the steps that had drafts gave, for each sequence in them."""
    stats = engine.core.stats
    return 1 + float(stats.accepted_tokens / stats.num_drafts)


def test_several_tokens_come_of_each_verification(make_engine: Make) -> None:
    prompts = chats()
    gained = {}
    for kind in KINDS:
        engine = speculating(make_engine, kind, max_running=16)
        answers(engine, prompts)
        gained[kind] = tokens_per_verification(engine)
    assert gained["medusa"] >= LEAST
    assert gained["eagle"] >= gained["medusa"]
