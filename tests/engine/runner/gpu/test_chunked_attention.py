"""Attention within chunks in device steps: tokens past several chunks are transformers'."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.process.config import StrategyChoice
from tests.engine.core.golden import golden_model
from tests.engine.core.models.test_tokens import compare
from tests.engine.runner.gpu.conftest import mixed_prompts

LOOKAHEAD = {
    "drafter": StrategyChoice("lookahead"),
    "spec_controller": StrategyChoice("fixed", {"drafts": 4}),
}


@pytest.mark.parametrize("make_device_engine", ["paged", "captured", "own"], indirect=True)
@pytest.mark.parametrize("fields", [{}, LOOKAHEAD], ids=["without drafts", "drafts"])
def test_tokens_of_many_chunks_equal_transformers(
    fields: dict[str, Any],
    checkpoint: Callable[[str], Path],
    make_device_engine: Callable[..., Any],
) -> None:
    folder = checkpoint("llama4_chunks")
    engine = make_device_engine(
        folder, page_size=8, kv_pages=60, max_batch_tokens=64, max_running=4, **fields
    )
    prompts = mixed_prompts(50, 320, 160, 0)[:12]
    compare(engine, golden_model(folder), prompts, 20, must_preempt=None)
    assert bool(fields) == (engine.core.stats.draft_tokens > 0)
