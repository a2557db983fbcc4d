"""One run of a family: chunked, preempted and cached prompts, compared with transformers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

from gatewayd_engine.process.config import StrategyChoice
from tests.engine.core.conftest import build
from tests.engine.core.models.tiny_families import best_tokens

CHUNK = 64
FEW, MANY = 7, 50
"""Prompts of a run; the last three of them begin as the first does."""
_LENGTHS, _COUNT, _PAGES = (90, 20, 24, 28), 40, 16
"""Four of them begin with 12 pages and need 22 in the end: one of them is preempted."""


class FamilyAnswers(NamedTuple):
    """What an engine answered.

    Attributes:
        backend: that built the layers.
        prompts, tokens: of each sequence, the last two of them from the prefix cache.
    """

    backend: str
    prompts: list[list[int]]
    tokens: list[list[int]]


class Outcome(NamedTuple):
    """Comparison with transformers.

    Attributes:
        backend: that built the layers.
        is_equal: whether all tokens are equal.
    """

    backend: str
    is_equal: bool


def family_answers(folder: Path, backend: StrategyChoice, num_prompts: int = FEW) -> FamilyAnswers:
    """Answers of an engine that has to chunk, preempt and find prefixes."""
    engine = build(
        folder, model_backend=backend, kv_pages=_PAGES, max_batch_tokens=CHUNK, max_model_len=160
    )
    try:
        rng = random.Random(1)
        prompts = [
            [rng.randrange(3, 320) for _ in range(_LENGTHS[index % len(_LENGTHS)])]
            for index in range(num_prompts - 3)
        ]
        ids = [engine.submit(each, max_tokens=_COUNT, ignore_eos=True)[0] for each in prompts]
        engine.run()
        assert engine.core.stats.preemptions > 0
        # Once more, as its pages may have been evicted; then they are found in the cache.
        again = [prompts[0], [*prompts[0], 7, 8, 9], prompts[0]]
        for number, each in enumerate(again):
            ids += engine.submit(each, max_tokens=_COUNT, ignore_eos=True)
            answers = engine.run()
            admitted = answers[ids[-1]].admitted
            assert admitted is not None
            assert number == 0 or admitted.cached_tokens >= 48
        tokens = [answers[each].tokens for each in ids]
        name = engine.info.strategies.get("model_backend", "native")
        return FamilyAnswers(name, prompts + again, tokens)
    finally:
        engine.core.check()
        engine.core.strategies.close()


def outcome_of(folder: Path, family: str, num_prompts: int = FEW) -> Outcome:
    """Run a family with ``auto``, and let transformers judge every token."""
    found = family_answers(folder, StrategyChoice("auto"), num_prompts)
    is_equal = all(
        len(tokens) == _COUNT
        and tokens == best_tokens(folder, family, prompt + tokens, len(prompt))
        for prompt, tokens in zip(found.prompts, found.tokens, strict=True)
    )
    return Outcome(found.backend, is_equal)
