"""Latent attention (MLA): KV records of latents through every part that stores or reads them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewayd_engine.core.hot_swap import EngineSwapRefused
from gatewayd_engine.model.model_backend import choose_backend
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_engine.offline.describe_model import describe
from gatewayd_engine.process.config import EngineConfig, StrategyChoice
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.strategy import Kind
from tests.engine.core.conftest import CATALOG
from tests.engine.core.golden import golden_model
from tests.engine.core.hot_swaps import swap
from tests.engine.core.tiered_engines import host

Make = Callable[..., Any]
LAYERS, RANK, ROPE = 3, 24, 8
RANDOM = random.Random(11)
PROMPTS = [[RANDOM.randrange(3, 320) for _ in range(length)] for length in (90, 20, 24, 28)]
NEW, PAGES = 40, 16
"""Prompts begin with 12 pages and need 22 in the end: one is preempted."""


@pytest.fixture(params=["deepseek_v2", "deepseek_v3"])
def folder(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Path:
    """Queries without and with a low rank."""
    return checkpoint(request.param)


def expected(folder: Path, prompts: list[list[int]], new: int = NEW) -> list[list[int]]:
    return [golden_model(folder).continued(prompt, new, (1,)) for prompt in prompts]


def together(engine: Any, prompts: list[list[int]], new: int = NEW) -> list[list[int]]:
    ids = [engine.submit(prompt, max_tokens=new)[0] for prompt in prompts]
    answers = engine.run()
    return [answers[each].tokens for each in ids]


def config(folder: Path, **fields: Any) -> EngineConfig:
    kinds = {"scheduler": "fcfs", "eviction": "lru", "preemption": "recompute"}
    strategies = {kind: StrategyChoice(name) for kind, name in kinds.items()}
    return EngineConfig(model=str(folder), **{**strategies, "prefix_cache": None, **fields})


def test_a_token_takes_a_latent_and_a_shared_key_in_each_layer(
    make_engine: Make, folder: Path
) -> None:
    info = make_engine(folder, page_size=16).info
    assert "model_backend" not in info.strategies
    assert info.page_bytes == 16 * LAYERS * (RANK + ROPE) * 4
    assert info.kv_record_bytes == (RANK + ROPE) * 4
    half = make_engine(folder, page_size=16, dtype="bfloat16").info
    assert half.page_bytes == info.page_bytes / 2


@pytest.mark.parametrize(
    ("prefix_cache", "preemption", "chunk"),
    [("hash", "recompute", 64), ("radix", "swap", 64), ("hash", "swap", 5)],
)
def test_tokens_are_those_of_transformers(
    make_engine: Make, folder: Path, prefix_cache: str, preemption: str, chunk: int
) -> None:
    engine = make_engine(
        folder,
        prefix_cache=StrategyChoice(prefix_cache),
        preemption=StrategyChoice(preemption),
        kv_pages=PAGES,
        max_model_len=160,
        max_batch_tokens=chunk,
    )
    assert together(engine, PROMPTS) == expected(folder, PROMPTS)
    assert engine.core.stats.preemptions > 0
    assert (engine.core.stats.swaps > 0) == (preemption == "swap")
    again = [[*PROMPTS[0], 7, 8, 9]]
    (sequence,) = engine.submit(again[0], max_tokens=NEW)
    answer = engine.run()[sequence]
    assert answer.admitted.cached_tokens >= 16
    assert answer.tokens == expected(folder, again)[0]


def test_dense_copies_and_pages_give_the_same(make_engine: Make, folder: Path) -> None:
    for copy_bytes in (0, None):
        engine = make_engine(folder, copy_bytes=copy_bytes)
        assert together(engine, PROMPTS) == expected(folder, PROMPTS)


def test_forks_share_the_pages_of_their_prompt(make_engine: Make, folder: Path) -> None:
    engine = make_engine(folder)
    prompt, fields = PROMPTS[0], {"temperature": 1.0, "max_tokens": 8, "ignore_eos": True}
    forks = engine.submit(prompt, n=3, seed=5, logprobs=2, **fields)
    answers = engine.run()
    assert len({tuple(answers[each].tokens) for each in forks}) == 3
    for each in forks:
        tokens = answers[each].tokens
        ids = torch.tensor([prompt + tokens])
        with torch.inference_mode():
            logits = golden_model(folder).model(ids).logits[0, len(prompt) - 1 : -1]
        wanted = logits.log_softmax(-1)[torch.arange(len(tokens)), torch.tensor(tokens)]
        found = [report.logprob for report in answers[each].logprobs]
        assert found == pytest.approx(wanted.tolist(), abs=1e-3)


@pytest.mark.parametrize("codec", ["bf16", "int8", "fp8", "plain fp8", "int4"])
def test_codecs_and_tiers_store_records(
    make_engine: Make, checkpoint: Callable[[str], Path], codec: str
) -> None:
    folder = checkpoint("deepseek_v3")
    settings = {"scale": "none"} if codec == "plain fp8" else {}
    fields = {
        "kv_codec": StrategyChoice(codec.split()[-1], settings),
        "kv_tiers": [host("1MiB")],
    }
    engine = make_engine(folder, kv_pages=8, **fields)
    each = engine.info.kv_record_bytes
    assert each == {"bf16": 64, "int8": 34, "fp8": 34, "plain fp8": 32, "int4": 20}[codec]
    assert engine.info.page_bytes == engine.info.page_size * LAYERS * each
    first = [engine.generate(prompt, max_tokens=6, ignore_eos=True) for prompt in PROMPTS]
    # In one step with room for all: what is read from a tier is what is computed.
    alone = make_engine(folder, **fields)
    assert first == [alone.generate(p, max_tokens=6, ignore_eos=True) for p in PROMPTS]
    assert first == [engine.generate(p, max_tokens=6, ignore_eos=True) for p in PROMPTS]
    assert engine.core.stats.tier_hits["host"] > 0


def test_a_compression_that_selects_reads_records(make_engine: Make, folder: Path) -> None:
    whole = StrategyChoice("heavy", {"budget": 1.0, "at_least": 1})
    engine = make_engine(folder, kv_compression=whole)
    assert together(engine, PROMPTS) == expected(folder, PROMPTS)
    settings = {"budget": 0.2, "at_least": 16, "dense_layers": 0, "warm_steps": 1}
    few = make_engine(folder, kv_compression=StrategyChoice("heavy", settings))
    answers = together(few, PROMPTS)
    assert not few.core.strategies.num_faults
    assert answers != expected(folder, PROMPTS)


def test_a_compression_that_makes_keys_and_values_is_refused(
    make_engine: Make, folder: Path
) -> None:
    matching = StrategyChoice("matching")
    with pytest.raises(ValueError, match="values of this model are its keys"):
        make_engine(folder, kv_compression=matching)
    engine = make_engine(folder)
    with pytest.raises(EngineSwapRefused, match="values of this model are its keys"):
        swap(engine, Kind.KV_COMPRESSION, matching)


@pytest.mark.parametrize("quantizer", ["int8", "int4"])
def test_matrices_are_quantized_while_they_are_loaded(
    make_engine: Make, folder: Path, quantizer: str
) -> None:
    settings = {"group_size": 32} if quantizer == "int4" else {}
    floats = make_engine(folder)
    engine = make_engine(folder, quantizer=StrategyChoice(quantizer, settings))
    assert engine.info.weight_bytes < 0.8 * floats.info.weight_bytes
    found = [together(each, PROMPTS, 1) for each in (floats, engine)]
    if quantizer == "int8":
        assert sum(one == other for one, other in zip(*found, strict=True)) >= 2


def test_drafts_change_no_token(make_engine: Make, folder: Path) -> None:
    prompts = [[3, 4, 5, 6] * 8, PROMPTS[1]]
    own = StrategyChoice("draft_model", {"model": str(folder), "min_confidence": 0.0})
    for drafter in (StrategyChoice("ngram"), own):
        engine = make_engine(
            folder,
            drafter=drafter,
            spec_controller=StrategyChoice("fixed", {"drafts": 3}),
        )
        assert together(engine, prompts) == expected(folder, prompts)
        if drafter is own:
            assert engine.core.stats.accepted_tokens > NEW


def test_the_cache_of_a_token_is_described_without_loading(folder: Path) -> None:
    found = describe(config(folder))
    assert found.backend == "native"
    assert found.token_bytes == LAYERS * (RANK + ROPE) * 4


def test_a_gpu_takes_the_own_decoder_too(folder: Path) -> None:
    given = config(folder, device="cuda:0", model_backend=StrategyChoice("auto"))
    found = choose_backend(given, PluginHost(CATALOG), PluginTimes(1.0, None))
    assert isinstance(found, ModelSpec)
    assert found.latent is not None
