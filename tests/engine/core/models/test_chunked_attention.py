"""Attention within chunks (Llama 4): tokens of contexts of several chunks are transformers'.

Chunks of attention have 16 and 24 tokens, prompts up to 160, steps 64 or fewer: both kinds of
chunks end anywhere within each other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.process.config import StrategyChoice
from tests.engine.core.conftest import mixed_prompts
from tests.engine.core.golden import golden_model
from tests.engine.core.models.test_tokens import compare

Make = Callable[..., Any]
NEW_TOKENS = 20
LOOKAHEAD = {
    "drafter": StrategyChoice("lookahead"),
    "spec_controller": StrategyChoice("fixed", {"drafts": 4}),
}
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
