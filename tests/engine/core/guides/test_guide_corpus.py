"""Guide corpus: sampled answers of the embedded model parse and validate."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer

from gatewayd_engine.model import embedded
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import LENGTH, STOP
from tests.plugins.guides.guides import REGEXES, SCHEMAS, follows_schema, matches
from tests.plugins.guides.test_guide_corpus import REFUSES

Make = Callable[..., Any]
CASES = [("json_schema", case) for case in SCHEMAS] + [("regex", case) for case in REGEXES]
PROMPTS = (
    "<|im_start|>user\nGive me JSON of asyncio.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is os.path.join?<|im_end|>\n<|im_start|>assistant\n",
)
GUIDES = ["llguidance", "xgrammar"]
DRAFTERS = [None, "ngram"]
COSTLY = {"llguidance": (), "xgrammar": ("(x+x+)+y",)}
"""Patterns whose answers may be ended because their masks take too long, on a slow machine."""


def campaign(engine: Any, per_case: int, max_tokens: int, guide: str) -> tuple[int, int]:
    """Ask for so many answers to each case; how many came to their end, and how many were cut."""
    tokenizer = Tokenizer.from_file(str(embedded.folder("nano") / "tokenizer.json"))
    prompts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    asked: dict[int, tuple[str, dict[str, Any]]] = {}
    for at, (form, case) in enumerate(CASES):
        text = case["pattern"] if form == "regex" else json.dumps(case["schema"])
        for i, prompt in enumerate(prompts):
            n = per_case // 2 + (i == 0 and per_case % 2)
            if n:
                ids = engine.submit(
                    prompt,
                    n=n,
                    max_tokens=max_tokens,
                    temperature=1.5,
                    seed=1000 * i + at,
                    guide=(form, text),
                )
                asked.update(dict.fromkeys(ids, (form, case)))
    done = engine.run()
    ended = cut = refused = 0
    for sequence, (form, case) in asked.items():
        answer = done[sequence]
        error = answer.finished.error
        name = case["pattern"] if form == "regex" else case["name"]
        if name in REFUSES[guide] or (error is not None and name in COSTLY[guide]):
            assert error is not None, case
            assert error[0] == "invalid_grammar"
            refused += 1
            continue
        assert error is None, (case, error)
        if answer.finished.reason == LENGTH:
            cut += 1
            continue
        assert answer.finished.reason == STOP
        said = tokenizer.decode(answer.tokens, skip_special_tokens=False)
        assert (follows_schema if form == "json_schema" else matches)(case, said), (case, said)
        ended += 1
    assert ended + cut + refused == len(asked)
    assert (refused > 0) == bool(REFUSES[guide])
    assert engine.core.stats.faults == 0
    return ended, cut


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_one_answer_to_each(make_engine: Make, drafter: str | None) -> None:
    engine = make_engine(
        guide=StrategyChoice("llguidance"),
        drafter=drafter and StrategyChoice(drafter),
        max_running=32,
    )
    ended, cut = campaign(engine, 1, 48, "llguidance")
    assert ended > cut


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("guide", GUIDES)
def test_ten_thousand_answers(make_engine: Make, guide: str, drafter: str | None) -> None:
    pytest.importorskip(guide)
    engine = make_engine(
        guide=StrategyChoice(guide),
        drafter=drafter and StrategyChoice(drafter),
        max_running=64,
        kv_pages=2048,
    )
    per_case = -(-10_000 // len(CASES))
    ended, cut = campaign(engine, per_case, 160, guide)
    print(f"\n{guide}, {drafter}: {ended} ended and fit, {cut} were cut at 160 tokens")


def test_the_corpus_is_varied() -> None:
    assert len(SCHEMAS) >= 60
    assert len(REGEXES) >= 40
    assert all(re.compile(case["pattern"]) for case in REGEXES)
