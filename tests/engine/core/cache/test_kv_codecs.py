"""KV codecs: same tokens however requests come, and same bytes wherever pages lie."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from gatewayd_engine.model import embedded
from gatewayd_engine.model.loading import loader
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.process.config import EngineConfigError, StrategyChoice
from gatewayd_engine.process.messages import SwapStrategy
from gatewayd_engine.process.plugin_faults import StrategyFault
from gatewayd_hooks.strategy import Kind
from gatewayd_kv_int8.strategy import Int8Codec
from tests.engine.core.cache.test_tiers import kv_of
from tests.engine.core.conftest import build
from tests.engine.core.float64_engine import compute_in_float64
from tests.engine.core.models import test_strategy_combinations
from tests.engine.core.models.test_strategy_combinations import (
    CHOICES,
    LENGTH,
    PROMPTS,
    Combination,
    Expected,
    names,
)
from tests.engine.core.scheduling.test_swap_preemption import kv_of as computed_kv
from tests.engine.core.scheduling.test_swap_preemption import preempt, write_over_all
from tests.engine.core.small_model import small
from tests.engine.core.tiered_engines import PROMPT, disk, evict_all, first_step, host

Make = Callable[..., Any]
CODECS = names(Kind.KV_CODEC)
FORMS = {
    "int8": (StrategyChoice("int8"), 34),
    "fp8": (StrategyChoice("fp8"), 34),
    "fp8 e5m2": (StrategyChoice("fp8", {"format": "e5m2"}), 34),
    "fp8 plain": (StrategyChoice("fp8", {"scale": "none"}), 32),
    "fp8 e5m2 plain": (StrategyChoice("fp8", {"format": "e5m2", "scale": "none"}), 32),
    "int4": (StrategyChoice("int4"), 20),
    "int4 as it is": (StrategyChoice("int4", {"rotate": False}), 20),
    "bf16": (StrategyChoice("bf16"), 64),
}
"""Codecs with settings, and bytes of a record of 32 numbers."""
SAMPLED = test_strategy_combinations.SAMPLED[:2]


@pytest.fixture(scope="module")
def folder(make_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 32 numbers, which all codecs take."""
    return make_checkpoint(tmp_path_factory.mktemp("wide"), "llama", head_dim=32)


def test_every_codec_is_tried_here() -> None:
    assert {choice.name for choice, _ in FORMS.values()} == set(CODECS)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that compute in float64 if they are asked to."""
    compute_in_float64(monkeypatch)
    monkeypatch.setattr(test_strategy_combinations, "SAMPLED", SAMPLED)


@cache
def expected(form: str, model: Path, num_prompts: int) -> Expected:
    """Of an engine with that codec, without anything else, one request at a time."""
    plain = build(model, prefix_cache=None, kv_codec=FORMS[form][0], dtype="float64")
    greedy: list[list[int]] = [[] for _ in PROMPTS]
    for k in range(0, len(PROMPTS), len(PROMPTS) // num_prompts):
        greedy[k] = plain.generate(PROMPTS[k], max_tokens=LENGTH, ignore_eos=True)
    seeded = []
    for k, fields in enumerate(SAMPLED):
        ids = plain.submit(PROMPTS[k], n=CHOICES, max_tokens=LENGTH, ignore_eos=True, **fields)
        done = plain.run()
        seeded.append([done[i].tokens for i in ids])
    plain.core.strategies.close()
    return Expected(greedy, seeded)


@pytest.mark.usefixtures("small_model", "exact")
@pytest.mark.parametrize(
    ("form", "cache_name", "preemption"),
    [
        ("int8", "radix", "swap"),
        ("fp8", "hash", "recompute"),
        ("int4", "radix", "recompute"),
    ],
)
def test_tokens_are_the_same_however_they_come(
    make_engine: Make, tmp_path: Path, form: str, cache_name: str, preemption: str
) -> None:
    fields = {
        "kv_codec": FORMS[form][0],
        "dtype": "float64",
        "scheduler": StrategyChoice("fcfs", {"max_prefill_chunk": 33}),
        "prefix_cache": StrategyChoice(cache_name),
        "preemption": StrategyChoice(preemption),
        "kv_tiers": [host("384KiB"), disk(tmp_path)],
        "drafter": StrategyChoice("lookahead"),
        "spec_controller": StrategyChoice("fixed", {"drafts": 4}),
        "page_size": 8,
        "kv_pages": 32,
        "max_running": 8,
        "max_batch_tokens": 100,
    }
    each = 4
    said = expected(form, small(), len(PROMPTS) // each)
    Combination(fields, 2, is_shaken=True, inline_bytes=0).check(make_engine, said, each)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("form", FORMS)
def test_a_dozen_combinations(make_engine: Make, tmp_path: Path, form: str) -> None:
    said = expected(form, embedded.folder("nano"), len(PROMPTS))
    for seed in range(2000, 2012):
        one = Combination.drawn(seed, tmp_path / str(seed), overlaps=seed % 4 == 3)
        one.fields.update(kv_codec=FORMS[form][0], dtype="float64")
        one.check(make_engine, said)


@pytest.mark.parametrize("form", [None, *FORMS])
def test_the_pool_has_as_many_bytes_as_its_records(
    make_engine: Make, folder: Path, form: str | None
) -> None:
    choice, record = (None, 4 * 32) if form is None else FORMS[form]
    engine = make_engine(folder, kv_codec=choice, kv_pages=10, page_size=8)
    pool, info = engine.core._placement._block_tables._pool, engine.info
    layers, kv_heads = 3, 2
    assert info.kv_record_bytes == record
    assert info.page_bytes == 8 * layers * 2 * kv_heads * record
    assert pool.data.nbytes == 11 * info.page_bytes  # one is scratch
    assert info.strategies.get("kv_codec") == (choice and choice.name)


def test_more_pages_fit_in_the_same_memory(make_engine: Make, folder: Path) -> None:
    sizes = {"kv_pages": None, "kv_bytes": 1 << 20, "max_running": 500}
    plain = make_engine(folder, **sizes).info
    coded = make_engine(folder, **sizes, kv_codec=StrategyChoice("int8")).info
    assert coded.num_pages == (1 << 20) // coded.page_bytes
    assert plain.num_pages == (1 << 20) // plain.page_bytes
    assert plain.page_bytes * 34 == coded.page_bytes * 128


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_page_comes_back_from_a_tier_bit_for_bit(
    make_engine: Make, folder: Path, tmp_path: Path, patient: None, form: str, tier: str
) -> None:
    tiers = [host() if tier == "host" else disk(tmp_path)]
    fields = {"kv_codec": FORMS[form][0], "kv_pages": 40, "page_size": 8}
    engine = make_engine(folder, **fields, kv_tiers=tiers)
    one = first_step(engine, PROMPT)
    computed = kv_of(engine, one, len(PROMPT) - 1)
    assert computed.any()
    tokens = engine.run()[one].tokens
    evict_all(engine)
    again = first_step(engine, PROMPT)
    assert np.array_equal(kv_of(engine, again, len(PROMPT) - 1), computed)
    assert engine.run()[again].tokens == tokens
    assert engine.answers[again].admitted.cached_tokens == 96


@pytest.mark.parametrize("form", FORMS)
def test_what_was_swapped_comes_back_bit_for_bit(
    make_engine: Make, folder: Path, inline_bytes: int, form: str
) -> None:
    fields = {"kv_codec": FORMS[form][0], "kv_pages": 40, "page_size": 8}
    engine = make_engine(folder, **fields, preemption=StrategyChoice("swap"))
    (one,) = engine.submit(PROMPT, max_tokens=20, ignore_eos=True)
    for _ in range(5):
        engine.step()
    computed, before = computed_kv(engine, one)
    preempt(engine, one)
    write_over_all(engine)
    engine.step()
    now, after = computed_kv(engine, one)
    assert now > computed
    assert np.array_equal(after[:computed], before)
    engine.run()
    assert engine.core.stats.swaps == 1


def test_engines_of_another_codec_find_nothing_of_each_other(
    make_engine: Make, folder: Path
) -> None:
    def identity(**fields: Any) -> bytes:
        found: bytes = make_engine(folder, **fields).core.strategies.identify()
        return found

    codecs = [None, *(choice for choice, _ in FORMS.values())]
    assert len({identity(kv_codec=codec) for codec in codecs}) == len(codecs)
    int8 = StrategyChoice("int8")
    assert identity(kv_codec=int8) == identity(kv_codec=int8)
    said = {"scale": "token", "format": "e4m3"}
    turned = dict(reversed(said.items()))
    of_fp8 = {identity(kv_codec=StrategyChoice("fp8", one)) for one in ({}, said, turned)}
    assert len(of_fp8) == 1, "what is set to its default is the default"
    # What a quarantined one would have written is not there either.
    assert identity(kv_codec=int8, quarantined=[["kv_codec", "int8"]]) == identity()


@pytest.mark.parametrize(
    ("form", "other"),
    [
        ("int4", "int4 as it is"),
        ("fp8", "fp8 e5m2"),
        ("fp8 plain", "fp8 e5m2 plain"),
        ("int8", "fp8"),
    ],
)
def test_pages_on_disk_are_found_by_the_same_form_alone(
    make_engine: Make, folder: Path, tmp_path: Path, patient: None, form: str, other: str
) -> None:
    def found(name: str) -> int:
        fields = {"kv_codec": FORMS[name][0], "kv_pages": 40, "page_size": 8}
        engine = make_engine(folder, **fields, kv_tiers=[disk(tmp_path)])
        one = first_step(engine, PROMPT)
        engine.run()
        evict_all(engine)
        engine.core.strategies.close()
        return int(engine.answers[one].admitted.cached_tokens)

    # Pages of both have the same number of bytes: only their name tells them apart.
    assert FORMS[form][1] == FORMS[other][1]
    assert [found(name) for name in (form, other, form, other)] == [0, 0, 96, 96]


def test_heads_that_do_not_fit_are_refused_at_the_start(
    make_engine: Make, checkpoint: Callable[[str], Path]
) -> None:
    sentence = (
        "^kv_codec int4 cannot serve this model: heads have 16 numbers, not a multiple of 32; use"
        " int8 or fp8$"
    )
    with pytest.raises(EngineConfigError, match=sentence):
        make_engine(checkpoint("llama"), kv_codec=StrategyChoice("int4"))


def test_a_quarantined_codec_is_none(make_engine: Make, folder: Path) -> None:
    fields = {"kv_codec": StrategyChoice("int8"), "quarantined": [["kv_codec", "int8"]]}
    engine, plain = make_engine(folder, **fields), make_engine(folder)
    assert engine.info == plain.info
    assert engine.generate(PROMPT, max_tokens=9) == plain.generate(PROMPT, max_tokens=9)


def test_it_serves_bfloat16_too(make_engine: Make, folder: Path) -> None:
    for choice, record in FORMS.values():
        engine = make_engine(folder, kv_codec=choice, dtype="bfloat16")
        assert engine.info.kv_record_bytes == record
        assert len(engine.generate(PROMPT, max_tokens=9, ignore_eos=True)) == 9


def test_one_that_raises_ends_the_engine_and_is_named(
    make_engine: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, left = Int8Codec.encode, [8]

    def broken(self: Any, values: Any, out: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise ArithmeticError("not today")
        encode(self, values, out)

    monkeypatch.setattr(Int8Codec, "encode", broken)
    engine = make_engine(folder, kv_codec=StrategyChoice("int8"))
    for prompt in (PROMPT, PROMPT[:30]):
        engine.submit(prompt, max_tokens=4)
    with pytest.raises(StrategyFault, match=r"kv_codec: .*not today") as fault:
        engine.run()
    assert engine.core.strategies.to_quarantine(fault.value) == ["kv_codec", "int8"]
    assert engine.core.strategies.to_quarantine(ValueError()) == []


@pytest.mark.parametrize(
    ("method", "broken", "sentence"),
    [
        ("encode", lambda self, values, out: 1 / 0, "fails its self-test.*division by zero"),
        ("decode", lambda self, records, out: out.fill_(1.0), "decodes zero bytes to nonzero"),
        (
            "decode",
            lambda self, records, out: out.fill_(float("nan") if records.any() else 0.0),
            "decodes finite numbers to non-finite",
        ),
    ],
)
def test_one_that_cannot_work_is_refused_before_anybody_asks(
    make_engine: Make,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    broken: Any,
    sentence: str,
) -> None:
    read: list[str] = []
    tensor = Checkpoint.tensor

    def noted(self: Checkpoint, name: str) -> torch.Tensor:
        read.append(name)
        return tensor(self, name)

    # Not the fixture that reads each model once.
    monkeypatch.setattr("gatewayd_engine.core.build.read", loader.read)
    monkeypatch.setattr(Checkpoint, "tensor", noted)
    make_engine(folder, kv_codec=StrategyChoice("int8"))
    assert read
    read.clear()
    monkeypatch.setattr(Int8Codec, method, broken)
    with pytest.raises(EngineConfigError, match=f"^kv_codec int8 {sentence}"):
        make_engine(folder, kv_codec=StrategyChoice("int8"))
    assert not read  # of weights, which may be gigabytes


def test_it_is_fixed_while_the_engine_runs(make_engine: Make, folder: Path) -> None:
    engine = make_engine(folder, kv_codec=StrategyChoice("int8"))
    engine.core.swaps.start(SwapStrategy(1, "kv_codec", []))
    (answer,) = engine.core.swaps.complete_ready()
    assert answer.error == "kv_codec is fixed while an engine runs: stored data depends on it"


def test_it_is_in_the_report_with_what_it_takes(make_engine: Make, folder: Path) -> None:
    engine = make_engine(folder, kv_codec=StrategyChoice("int8"))
    engine.generate(PROMPT, max_tokens=4)
    (row,) = [row for row in engine.core.strategies.report() if row.kind == "kv_codec"]
    assert (row.name, row.state, row.faults) == ("int8", "active", 0)
    assert row.calls > 3 * 4
    assert row.seconds > 0


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (ValueError("heads of 16 numbers are too small"), "cannot serve this model: heads of 16"),
        (0, "returned 0 bytes per record"),
        (2.5, "returned 2.5 bytes per record"),
    ],
)
def test_a_codec_that_does_not_suit_the_model_is_refused(
    make_engine: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, answer: Any, sentence: str
) -> None:
    def asked(self: Any, head_dim: int, dtype: torch.dtype) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(Int8Codec, "record_bytes", asked)
    with pytest.raises(EngineConfigError, match=f"^kv_codec int8 {sentence}"):
        make_engine(folder, kv_codec=StrategyChoice("int8"))


def test_the_embedded_model_loses_hardly_anything(make_engine: Make) -> None:
    nano = embedded.folder("nano")
    tokenizer = Tokenizer.from_file(str(nano / "tokenizer.json"))
    text = Path(textwrap.__file__).read_text("utf-8")
    prompt = tokenizer.encode(text, add_special_tokens=False).ids[:400]

    def perplexity(choice: StrategyChoice | None) -> float:
        engine = make_engine(nano, prefix_cache=None, kv_codec=choice, max_batch_tokens=128)
        (one,) = engine.submit(prompt, max_tokens=1, prompt_logprobs=0)
        told = engine.run()[one].prompt_logprobs
        assert len(told) == len(prompt) - 1
        return math.exp(-sum(each.logprob for each in told) / len(told))

    plain = perplexity(None)
    assert plain < 1.5  # it knows this text
    for choice, _ in FORMS.values():
        most = 1.1 if choice.name == "int4" else 1.03
        assert plain * 0.99 < perplexity(choice) < plain * most
