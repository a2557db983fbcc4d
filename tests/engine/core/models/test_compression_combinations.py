"""Weight and KV compression: every scheme with every other kind of strategy.

What is expected is what a plain engine of the same scheme says, one request at a time: without
cache, drafts, tiers or swaps. Quantizers, codecs and compressions are those that are installed, so
a new one is in the draw from its first day, and each is paired with everything else in the long
test. Of a compression that selects, an answer follows from where it was preempted, too; drafts
decide which of its steps attend to all, and then only what such steps leave alone is expected.
"""

from __future__ import annotations

import atexit
import copy
import itertools
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gatewayd_engine.model import embedded
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.kv_compression import Moves, Selects
from gatewayd_hooks.preemption import PreemptionMode
from gatewayd_hooks.quantization import Quantizes
from gatewayd_hooks.strategy import Kind
from tests.engine.core.conftest import build
from tests.engine.core.float64_engine import compute_in_float64
from tests.engine.core.hot_swaps import OFFERS
from tests.engine.core.models import test_strategy_combinations
from tests.engine.core.models.test_formats import written
from tests.engine.core.models.test_strategy_combinations import (
    CHOICES,
    LENGTH,
    PROMPTS,
    Combination,
    Expected,
    names,
)
from tests.engine.core.replayed_requests import Loose, Replayed
from tests.engine.core.scheduling.test_swap_preemption import kv_of
from tests.engine.core.small_model import small
from tests.engine.core.tiered_engines import disk, host
from tests.plugins.quantized.writers import WRITERS, Writer

Make = Callable[..., Any]
Row = Mapping[str, Any]
Offers = dict[Kind, list[list[StrategyChoice]]]
NONE = "none"
HOST = PluginHost(Catalog.installed())
QUANTIZERS = [
    name
    for name in names(Kind.QUANTIZER)
    if isinstance(HOST.strategy(Kind.QUANTIZER, name, {}), Quantizes)
]
BY_TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


def with_int8_inputs(writer: Writer) -> Writer:
    announced = copy.deepcopy(dict(writer.announced))
    for group in announced["config_groups"].values():
        group["input_activations"] = BY_TOKEN
    return writer._replace(announced=announced)


READ = {"awq": WRITERS["awq"], "int8 as read": with_int8_inputs(WRITERS["integers"])}
"""Formats of checkpoints: one computed in floats, and one that rounds activations."""


def beside(name: str) -> str:
    return str(embedded.folder("nano").with_name(f"nano-{name}"))


DRAFTERS = [
    StrategyChoice("ngram"),
    StrategyChoice("lookahead"),
    StrategyChoice("draft_model", {"model": beside("draft")}),
    StrategyChoice("medusa", {"heads": beside("medusa")}),
    StrategyChoice("eagle", {"heads": beside("eagle")}),
]
SOON: dict[str, Any] = {
    "at_least": 40,
    "warm_steps": 3,
    "every": 7,
    "dense_layers": 1,
    "budget": 0.2,
}
COMPRESSIONS: dict[str, dict[str, Any]] = {
    "heavy": SOON,
    "predictor": {**SOON, "network": beside("predictor")},
    "matching": {"at_least": 64, "recent": 8, "queries": 24},
}
"""Settings with which they act on prompts as short as these; others are as they come."""
SWAPPED: Offers = {}
SWAPPED.update((kind, offers) for kind, offers in OFFERS.items() if kind != Kind.LOGITS_PROCESSOR)
SWAPPED[Kind.DRAFTER] = [[], *([choice] for choice in DRAFTERS)]
"""What may be changed while it runs."""
DIMENSIONS: dict[str, Sequence[Any]] = {
    "weights": (NONE, *QUANTIZERS, *READ),
    "codec": (NONE, *names(Kind.KV_CODEC)),
    "compression": (NONE, *names(Kind.KV_COMPRESSION)),
    "prefix_cache": (None, "hash", "radix"),
    "tiers": ("", "host", "disk", "host disk"),
    "drafter": range(-1, len(DRAFTERS)),
    "preemption": ("recompute", "swap"),
    "is_swapped": (False, True),
}


@cache
def rows(seed: int) -> list[Row]:
    """Combinations in which each value of a dimension meets each of every other one."""
    dice = random.Random(seed)
    pairs = [*itertools.combinations(DIMENSIONS, 2)]
    missing = {(a, x, b, y) for a, b in pairs for x in DIMENSIONS[a] for y in DIMENSIONS[b]}

    def met(row: Row) -> set[Any]:
        return {(a, row[a], b, row[b]) for a, b in pairs} & missing

    found: list[Row] = []
    while missing:
        drawn = [{k: dice.choice(v) for k, v in DIMENSIONS.items()} for _ in range(40)]
        a, x, b, y = min(missing, key=repr)
        row = max((each | {a: x, b: y} for each in drawn), key=lambda each: len(met(each)))
        missing -= met(row)
        found.append(row)
    return found


@cache
def stored(name: str, source: Path) -> Path:
    """The model of a folder in a format."""
    folder = Path(tempfile.mkdtemp(prefix="gatewayd-stored-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    written(source, folder / "model", READ[name])
    return folder / "model"


@cache
def scheme(weights: str, codec: str, compression: str, source: Path) -> dict[str, Any]:
    """Fields of an engine that holds weights and KV so.

    Where a codec rounds what floats have made, or a compression chooses among them, it computes in
    float64: the last digits of a float32 depend on the batch, unless products round what they are
    given.
    """
    found: dict[str, Any] = {"model": source}
    if weights in READ:
        found |= {"model": stored(weights, source), "quantizer": StrategyChoice("auto")}
    elif weights != NONE:
        found["quantizer"] = StrategyChoice(weights)
    if codec != NONE:
        found["kv_codec"] = StrategyChoice(codec)
    if compression != NONE:
        settings = COMPRESSIONS.get(compression, {})
        found["kv_compression"] = StrategyChoice(compression, settings)
    if codec != NONE or compression != NONE:
        plain = build(**found)
        if not plain.core._runner._decoder.rounds_inputs:  # type: ignore[attr-defined]
            found["dtype"] = "float64"
        plain.core.strategies.close()
    return found


@cache
def expected(weights: str, codec: str, source: Path, each: int) -> Expected:
    """Of one in so many prompts, and of each way of sampling.

    Where products round what they are given, keys and values are the same bit for bit.
    """
    plain = build(**scheme(weights, codec, NONE, source), prefix_cache=None)
    greedy: list[list[int]] = [[] for _ in PROMPTS]
    kv: dict[int, NDArray[np.uint8]] = {}
    for k in range(0, len(PROMPTS), each):
        (i,) = plain.submit(PROMPTS[k], max_tokens=LENGTH, ignore_eos=True)
        while len(plain.answers[i].tokens) < LENGTH - 1:
            plain.step()
        if plain.core._runner._decoder.rounds_inputs:  # type: ignore[attr-defined]
            _, kv[k] = kv_of(plain, i)
        greedy[k] = plain.run()[i].tokens
    seeded = []
    for k, fields in enumerate(test_strategy_combinations.SAMPLED):
        ids = plain.submit(PROMPTS[k], n=CHOICES, max_tokens=LENGTH, ignore_eos=True, **fields)
        done = plain.run()
        seeded.append([done[i].tokens for i in ids])
    plain.core.strategies.close()
    return Expected(greedy, seeded, kv)


@cache
def alone(
    weights: str, codec: str, compression: str, source: Path, page_size: int, *, is_whole: bool
) -> Any:
    """An engine for one request at a time, with the arithmetic that the compression has.

    What a prompt is compacted to is whole pages.
    """
    fields = scheme(weights, codec, compression, source)
    if is_whole:
        fields = {**fields, "kv_compression": None}
    engine = build(**fields, prefix_cache=None, page_size=page_size)
    atexit.register(engine.core.strategies.close)
    return engine


def compressed(row: Row, source: Path, page_size: int) -> Replayed:
    """What a row with a compression has to say."""
    name = row["compression"]
    engine = partial(alone, row["weights"], row["codec"], name, source, page_size)
    strategy = HOST.strategy(Kind.KV_COMPRESSION, name, {})
    selects = isinstance(strategy, Selects)
    replayed = [PreemptionMode.RECOMPUTE] if selects else []
    replayed += [PreemptionMode.SWAP] if selects and not isinstance(strategy, Moves) else []
    nothing: dict[str, Any] = {"greedy": [], "seeded": []}
    if selects and row["drafter"] >= 0:
        least = COMPRESSIONS.get(name, {}).get("at_least", 0)
        whole = partial(engine, is_whole=True)
        return Loose(alone=lambda _: whole(), replayed=(), at_least=int(least), **nothing)
    # What several answers share is never compacted.
    return Replayed(
        alone=lambda is_shared: engine(is_whole=is_shared and not selects),
        replayed=tuple(replayed),
        **nothing,
    )


def check(make_engine: Make, row: Row, seed: int, path: Path, source: Path, each: int) -> None:
    """Ask an engine of a row, of which the rest is drawn."""
    one = Combination.drawn(seed, path)
    tiers = {"host": host("384KiB"), "disk": disk(path / "tier")}
    choice, name = row["prefix_cache"], row["compression"]
    one.fields.update(
        scheme(row["weights"], row["codec"], name, source),
        prefix_cache=None if choice is None else StrategyChoice(choice),
        kv_tiers=[tiers[name] for name in row["tiers"].split()],
        drafter=None if row["drafter"] < 0 else DRAFTERS[row["drafter"]],
        preemption=StrategyChoice(row["preemption"]),
    )
    offers = SWAPPED
    if name != NONE:
        # Kinds that answers depend on are no others.
        gone = {Kind.KV_COMPRESSION} | ({Kind.DRAFTER} if row["drafter"] < 0 else set())
        offers = {kind: choices for kind, choices in SWAPPED.items() if kind not in gone}
    one = replace(one, is_shaken=True, offers=offers if row["is_swapped"] else None)
    if name == NONE:
        one.check(make_engine, expected(row["weights"], row["codec"], source, each), each)
        return
    found = compressed(row, source, one.fields["page_size"])
    with found.watching():
        one.check(make_engine, found, each)


@pytest.fixture(autouse=True)
def _float64_is_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_in_float64(monkeypatch)


@pytest.mark.parametrize("weights", DIMENSIONS["weights"])
def test_a_few_rows(
    make_engine: Make, tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        test_strategy_combinations, "SAMPLED", test_strategy_combinations.SAMPLED[:2]
    )
    row = next(row for row in rows(1) if row["weights"] == weights)
    check(make_engine, row, 1, tmp_path, small(), each=4)


@pytest.mark.parametrize("compression", DIMENSIONS["compression"][1:])
def test_a_row_with_each_compression(
    make_engine: Make, tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        test_strategy_combinations, "SAMPLED", test_strategy_combinations.SAMPLED[:1]
    )
    of_it = (row for row in rows(1) if row["compression"] == compression and row["drafter"] < 0)
    row = next(of_it)
    check(make_engine, row, 1, tmp_path, small(), each=9)
    long = {"max_tokens": LENGTH, "ignore_eos": True}
    few, whole = (
        alone(row["weights"], row["codec"], compression, small(), 8, is_whole=is_whole)
        for is_whole in (False, True)
    )
    assert any(few.generate(p, **long) != whole.generate(p, **long) for p in PROMPTS[9:5:-1])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_pairs(make_engine: Make, tmp_path: Path) -> None:
    for seed, row in enumerate(rows(2), 3000):
        check(make_engine, row, seed, tmp_path / str(seed), embedded.folder("nano"), each=1)
