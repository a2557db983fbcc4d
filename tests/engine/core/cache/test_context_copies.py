"""Context copies: bounded memory; same answers with fewer or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.process.config import StrategyChoice
from tests.engine.core.conftest import Harness, mixed_prompts

Make = Callable[..., Any]
TOKEN = 3 * 2 * 2 * 16 * 4  # layers, keys and values, heads, numbers, bytes
PROMPTS = mixed_prompts(12, 320, 260, seed=3)


def contexts(engine: Harness) -> Any:
    return engine.core._runner._attention._planner._contexts  # type: ignore[attr-defined]


def taken(engine: Harness) -> int:
    """Bytes of all tensors that hold copies, used or not."""
    found = contexts(engine)
    buffers = [*found._buffers._used.values(), *found._buffers._idle]
    prefixes = [
        key.nbytes + value.nbytes
        for one in found._prefixes.values()
        for key, value in zip(one.keys, one.values, strict=True)
    ]
    return int(sum(prefixes) + sum(buffer.kv.nbytes for buffer in buffers))


def answers(engine: Harness) -> tuple[list[list[int]], int]:
    """Tokens of all prompts, and the most that copies have taken."""
    ids = [engine.submit(prompt, max_tokens=20, ignore_eos=True)[0] for prompt in PROMPTS]
    most = 0
    while engine.core.has_work:
        engine.step()
        most = max(most, taken(engine))
    return [engine.answers[i].tokens for i in ids], most


@pytest.mark.parametrize("codec", [None, "int8"])
def test_copies_take_what_they_may_and_answers_stay_the_same(
    make_engine: Make, checkpoint: Callable[[str], Path], codec: str | None
) -> None:
    folder = checkpoint("llama")
    choice = None if codec is None else StrategyChoice(codec)
    fields: dict[str, Any] = {"kv_codec": choice, "kv_pages": 400, "cpu_kernels": "torch"}
    free, without_bound = answers(make_engine(folder, **fields))
    some, bounded = answers(make_engine(folder, **fields, copy_bytes=1500 * TOKEN))
    none, nothing = answers(make_engine(folder, **fields, copy_bytes=0))
    if codec is None:  # a number between two codes may be rounded to either
        assert free == some == none
    assert without_bound > 1500 * TOKEN >= bounded > 500 * TOKEN
    assert nothing == 0


@pytest.mark.parametrize("codec", [None, "int8"])
def test_by_default_they_may_take_as_much_as_the_pool_or_a_gibibyte(
    make_engine: Make, checkpoint: Callable[[str], Path], codec: str | None
) -> None:
    choice = None if codec is None else StrategyChoice(codec)
    engine = make_engine(
        checkpoint("llama"), kv_codec=choice, kv_pages=400, page_size=16, cpu_kernels="torch"
    )
    assert contexts(engine)._buffers._spare_tokens == 401 * 16
