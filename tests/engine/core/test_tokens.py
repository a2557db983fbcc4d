"""Greedy tokens equal Hugging Face transformers', whatever the engine does meanwhile."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewayd_engine.model import embedded

MANY = pytest.mark.parametrize("num_prompts", [50, pytest.param(200, marks=pytest.mark.slow)])
NEW_TOKENS = 12
ARCHITECTURES = (
    "llama", "llama3", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "mixtral", "qwen3_moe",
)  # fmt: skip


def expected(model: Any, prompts: list[list[int]], new: int, eos: list[int]) -> list[list[int]]:
    """Greedy continuations by transformers: the whole context again for each token, no cache."""
    return [_continued(model, tuple(prompt), new, tuple(eos)) for prompt in prompts]


@functools.cache
def _continued(model: Any, prompt: tuple[int, ...], new: int, eos: tuple[int, ...]) -> list[int]:
    """One of them; several engines are compared with the same."""
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=list(eos),
            pad_token_id=0,
        )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    ends = [i for i, token in enumerate(tokens) if token in eos]
    return tokens[: ends[0]] if ends else tokens


def compare(
    engine: Any, model: Any, prompts: list[list[int]], new: int, *, must_preempt: bool | None
) -> None:
    order = list(range(len(prompts)))
    random.Random(1).shuffle(order)
    sequence_of = {}
    for i in order:
        (sequence_of[i],) = engine.submit(prompts[i], max_tokens=new)
        if random.Random(i).random() < 0.3:
            engine.step()
    answers = engine.run()
    stats = engine.core.stats
    assert stats.prefix_hits > 0
    assert must_preempt is None or (stats.preemptions > 0) is must_preempt
    wanted = expected(model, prompts, new, engine.info.eos_token_ids)
    for i, tokens in enumerate(wanted):
        got = answers[sequence_of[i]].tokens
        assert got == tokens, f"prompt {i} of {len(prompts[i])} tokens"


@MANY
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tokens_equal_transformers(
    architecture: str,
    checkpoint: Callable[[str], Path],
    make_engine: Callable[..., Any],
    oracle: Callable[[Path], Any],
    prompts: Callable[..., list[list[int]]],
    num_prompts: int,
) -> None:
    folder = checkpoint(architecture)
    # So few pages that sequences must make room for one another.
    engine = make_engine(folder, page_size=2, kv_pages=180, max_batch_tokens=64, max_running=16)
    # Among the prompts of seed 0 one visits two experts whose scores differ by 5e-6: there the
    # order of additions decides, in transformers as here.
    seed = 1 if architecture == "qwen3_moe" else 0
    mixed = prompts(num_prompts, 320, 160, seed)
    compare(engine, oracle(folder), mixed, NEW_TOKENS, must_preempt=True)


@pytest.mark.parametrize("num_prompts", [24, pytest.param(200, marks=pytest.mark.slow)])
def test_nano_tokens_equal_transformers(
    make_engine: Callable[..., Any],
    oracle: Callable[[Path], Any],
    prompts: Callable[..., list[list[int]]],
    num_prompts: int,
) -> None:
    folder = embedded.folder("nano")
    engine = make_engine(folder, page_size=2, kv_pages=240, max_batch_tokens=64, max_running=16)
    compare(engine, oracle(folder), prompts(num_prompts, 4096, 200), 16, must_preempt=True)
