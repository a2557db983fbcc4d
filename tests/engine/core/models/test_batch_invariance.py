"""Batch invariance with rounded activations: same keys and values however tokens come."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from gatewayd_engine.model import embedded
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.preemption import PreemptionMode
from tests.engine.core.scheduling.test_swap_preemption import kv_of, preempt

Make = Callable[..., Any]
Said = list[tuple[list[int], NDArray[np.uint8]]]
LENGTH = 10
CHUNKS = {
    f"chunks of {size}": {"scheduler": StrategyChoice("fcfs", {"max_prefill_chunk": size})}
    for size in (16, 32, 48)
}
EAGLE = {"heads": str(embedded.folder("nano").with_name("nano-eagle"))}
DRAFTED = {
    choice.name: {
        "drafter": choice,
        "spec_controller": StrategyChoice("fixed", {"drafts": 4}),
    }
    for choice in (StrategyChoice("lookahead"), StrategyChoice("eagle", EAGLE))
}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Text that the embedded model knows."""
    tokenizer = Tokenizer.from_file(str(embedded.folder("nano") / "tokenizer.json"))
    text = Path(textwrap.__file__).read_text("utf-8")
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return [ids[at : at + length] for at, length in ((0, 150), (700, 77), (1500, 40))]


def apart(engine: Any, prompts: list[list[int]]) -> Said:
    """One after the other."""
    said = []
    for prompt in prompts:
        (i,) = engine.submit(prompt, max_tokens=LENGTH, ignore_eos=True)
        said.append(finish(engine, [i])[0])
    return said


def known(engine: Any, prompts: list[list[int]]) -> Said:
    """Two thirds of each prompt are found."""
    for prompt in prompts:
        engine.generate(prompt[: 2 * len(prompt) // 3], max_tokens=2, ignore_eos=True)
    return apart(engine, prompts)


def together(engine: Any, prompts: list[list[int]]) -> Said:
    """All at once."""
    ids = [engine.submit(p, max_tokens=LENGTH, ignore_eos=True)[0] for p in prompts]
    return finish(engine, ids)


def computed_again(engine: Any, prompts: list[list[int]]) -> Said:
    """Each is preempted while it decodes."""
    said = []
    for prompt in prompts:
        (i,) = engine.submit(prompt, max_tokens=LENGTH, ignore_eos=True)
        while len(engine.answers[i].tokens) < LENGTH // 2:
            engine.step()
        preempt(engine, i, PreemptionMode.RECOMPUTE)
        said.append(finish(engine, [i])[0])
    return said


def finish(engine: Any, ids: list[int]) -> Said:
    """Tokens of each, and its keys and values before the last step, bit for bit."""
    found: dict[int, NDArray[np.uint8]] = {}
    while engine.core.has_work:
        engine.step()
        for i in ids:
            if engine.answers[i].tokens and engine.answers[i].finished is None:
                found[i] = kv_of(engine, i)[1]
    return [(engine.answers[i].tokens, found[i]) for i in ids]


WAYS: list[tuple[str, Callable[[Any, list[list[int]]], Said], dict[str, Any]]] = [
    *((name, apart, fields) for name, fields in CHUNKS.items()),
    *((name, apart, fields) for name, fields in DRAFTED.items()),
    ("found by hash", known, {"prefix_cache": StrategyChoice("hash")}),
    ("found by radix", known, {"prefix_cache": StrategyChoice("radix")}),
    ("together", together, {}),
    ("together in chunks", together, {"max_batch_tokens": 50}),
    ("computed again", computed_again, {}),
]


@pytest.mark.usefixtures("small_model")
@pytest.mark.parametrize(
    "fields",
    [
        {"quantizer": StrategyChoice("int8")},
        {"quantizer": StrategyChoice("int8"), "quantizer_skip": ["*.down_proj", "*.qkv_proj"]},
        {"quantizer": StrategyChoice("int8"), "kv_codec": StrategyChoice("int8")},
    ],
    ids=["all", "some", "with a codec"],
)
def test_keys_and_values_are_the_same_bit_for_bit(
    make_engine: Make, prompts: list[list[int]], fields: dict[str, Any]
) -> None:
    fields = {"prefix_cache": None, "page_size": 8, **fields}
    expected = apart(make_engine(**fields), prompts)
    for name, way, more in WAYS:
        for (tokens, kv), (said, computed) in zip(
            expected, way(make_engine(**fields | more), prompts), strict=True
        ):
            assert said == tokens, name
            count = min(len(kv), len(computed))
            assert count > len(prompts[-1])
            assert np.array_equal(kv[:count], computed[:count]), name


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "name",
    [
        "gemma2",
        "qwen3_moe",
        "mixtral_window",
        "llama_exact_gelu",
        "qwen2_moe",
        "glm4_moe",
        "gpt_oss",
        "deepseek_v3",
        "llama4_chunks",
    ],
)
def test_so_they_are_in_other_architectures(
    make_engine: Make, checkpoint: Callable[[str], Path], name: str, threads: int
) -> None:
    chance = random.Random(3)
    prompts = [[chance.randrange(2, 320) for _ in range(n)] for n in (400, 61)]
    fields = {
        "model": checkpoint(name),
        "quantizer": StrategyChoice("int8"),
        "prefix_cache": None,
        "threads": threads,
    }
    expected = apart(make_engine(**fields), prompts)
    for way, more in (
        (apart, CHUNKS["chunks of 48"]),
        (together, {}),
        (together, DRAFTED["lookahead"]),
    ):
        for (tokens, kv), (said, computed) in zip(
            expected, way(make_engine(**fields | more), prompts), strict=True
        ):
            assert said == tokens
            count = min(len(kv), len(computed))
            assert np.array_equal(kv[:count], computed[:count])
