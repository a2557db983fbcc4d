"""Attention within chunks (Llama 4): tokens of contexts of several chunks are transformers'.

Chunks of attention have 16 and 24 tokens, prompts up to 160, steps 64 or fewer: both kinds of
chunks end anywhere within each other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.speculation import DraftBatch, Drafts
from tests.engine.core.conftest import mixed_prompts
from tests.engine.core.fake_drafters import Always, guess_with
from tests.engine.core.golden import golden_model
from tests.engine.core.models.test_tokens import compare

Make = Callable[..., Any]
NEW_TOKENS = 20
LOOKAHEAD = {
    "drafter": StrategyChoice("lookahead"),
    "spec_controller": StrategyChoice("fixed", {"drafts": 4}),
}


class Late(Always):
    """Guesses a wrong token, and then, as its sibling, a branch of right ones."""

    def propose(self, batch: DraftBatch) -> Drafts:
        drafts = super().propose(batch)
        tokens = np.concatenate(
            ((drafts.tokens[:, :1] + 1) % self._vocab, drafts.tokens[:, :-1]), 1
        )
        parents = np.tile(np.arange(-1, tokens.shape[1] - 1, dtype=np.int32), (len(tokens), 1))
        parents[:, :2] = -1
        return Drafts(tokens, drafts.counts, parents)


each_variant = pytest.mark.parametrize("variant", ["llama4_chunks", "llama4_dense"])


@each_variant
def test_tokens_of_many_chunks_equal_transformers(
    variant: str, checkpoint: Callable[[str], Path], make_engine: Make
) -> None:
    folder = checkpoint(variant)
    engine = make_engine(folder, page_size=2, kv_pages=180, max_batch_tokens=64, max_running=16)
    prompts = mixed_prompts(50, 320, 160, 0)
    assert sum(len(prompt) > 5 * max(read_spec(folder).windows) for prompt in prompts) > 5
    compare(engine, golden_model(folder), prompts, NEW_TOKENS, must_preempt=True)


@each_variant
@pytest.mark.parametrize(
    "fields",
    [
        {"max_batch_tokens": 7, "max_running": 5, "preemption": StrategyChoice("swap")},
        {"max_batch_tokens": 33, "copy_bytes": 0, "prefix_cache": StrategyChoice("radix")},
        {"max_batch_tokens": 50, **LOOKAHEAD},
    ],
    ids=["steps of 7", "without copies", "drafts"],
)
def test_neither_steps_nor_drafts_change_a_token(
    variant: str, fields: dict[str, Any], checkpoint: Callable[[str], Path], make_engine: Make
) -> None:
    folder = checkpoint(variant)
    engine = make_engine(folder, **{"page_size": 2, "kv_pages": 180, "max_running": 8, **fields})
    prompts = mixed_prompts(50, 320, 160, 0)[:12]
    compare(engine, golden_model(folder), prompts, NEW_TOKENS, must_preempt=None)
    assert ("drafter" in fields) == (engine.core.stats.draft_tokens > 0)


@each_variant
@pytest.mark.parametrize("page_size", [2, 16])
def test_trees_of_drafts_may_lie_across_a_chunk_edge(
    variant: str, page_size: int, checkpoint: Callable[[str], Path], make_engine: Make
) -> None:
    """A later sibling's slot is after its position, so they may be on two sides of an edge."""
    fields = {"model": checkpoint(variant), "page_size": page_size, "kv_pages": 2048 // page_size}
    prompts = [list(range(length % 7, length)) for length in range(17, 65)]

    def answers(engine: Any) -> list[tuple[list[int], list[float]]]:
        more = {"max_tokens": NEW_TOKENS, "ignore_eos": True, "logprobs": 1}
        ids = [engine.submit(prompt, **more)[0] for prompt in prompts]
        done = engine.run()
        return [(done[i].tokens, [each.logprob for each in done[i].logprobs]) for i in ids]

    plain = answers(make_engine(**fields))
    drafting = make_engine(**fields, **LOOKAHEAD)
    known = [prompt + tokens for prompt, (tokens, _) in zip(prompts, plain, strict=True)]
    guess_with(drafting, Late(known, 1.0, "tree", vocab=drafting.info.vocab_size))
    for (got, logprobs), (wanted, expected) in zip(answers(drafting), plain, strict=True):
        assert got == wanted
        assert logprobs == pytest.approx(expected, abs=1e-4)
    assert drafting.core.stats.accepted_tokens > 100
