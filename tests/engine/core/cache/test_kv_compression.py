"""Sparse KV attention: no leak, no fault, and off is off."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatewayd_engine.core.build import assemble
from gatewayd_engine.model import embedded
from gatewayd_engine.process.config import EngineConfig, EngineConfigError, StrategyChoice
from gatewayd_engine.process.messages import LENGTH, SwapStrategy
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.preemption import PreemptionMode
from gatewayd_hooks.strategy import Kind
from gatewayd_kvc_heavy.strategy import Heavy
from tests.engine.core.conftest import CATALOG
from tests.engine.core.hot_swaps import swap
from tests.engine.core.scheduling.test_swap_preemption import preempt
from tests.engine.core.small_model import small
from tests.engine.core.tiered_engines import host
from tests.random_cases import few_of

pytestmark = pytest.mark.usefixtures("small_model")
Make = Callable[..., Any]

SOON = {"at_least": 16, "warm_steps": 2, "every": 5, "dense_layers": 0}
FEW = StrategyChoice("heavy", {**SOON, "budget": 0.2})
ALL = StrategyChoice("heavy", {**SOON, "budget": 1.0})
PROMPTS = [[7 + i, *range(20, 90 + 17 * i)] for i in range(4)]


def answers(engine: Any, length: int = 40, **fields: Any) -> list[list[int]]:
    ids = [engine.submit(p, max_tokens=length, ignore_eos=True, **fields)[0] for p in PROMPTS]
    done = engine.run()
    return [done[i].tokens for i in ids]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many lines have attended to few places, by call of ``select``."""
    seen: list[int] = []
    select = Heavy.select

    def counted(self: Any, layer: int, rows: Any, *rest: Any) -> Any:
        seen.append(len(rows))
        return select(self, layer, rows, *rest)

    monkeypatch.setattr(Heavy, "select", counted)
    return seen


def test_a_budget_of_all_is_exact(make_engine: Make, few: list[int]) -> None:
    assert answers(make_engine(kv_compression=ALL)) == answers(make_engine())
    assert not few


def test_few_places_change_answers_and_are_the_same_each_time(
    make_engine: Make, few: list[int]
) -> None:
    engine = make_engine(kv_compression=FEW, prefix_cache=None)
    once = answers(engine)
    assert len(few) > 20
    assert once != answers(make_engine())
    assert once == answers(engine)
    (row,) = [row for row in engine.core.strategies.report() if row.kind == "kv_compression"]
    assert (row.name, row.state, row.faults) == ("heavy", "active", 0)


def test_it_does_not_depend_on_what_was_cached(make_engine: Make, few: list[int]) -> None:
    # All but the last token of the prompt is found the second time: a step with one token.
    prompt = [*range(20, 20 + 96), 7]
    engine = make_engine(kv_compression=FEW, page_size=16)
    once = engine.generate(prompt, max_tokens=40, ignore_eos=True)
    asked, few[:] = list(few), []
    assert engine.generate(prompt, max_tokens=40, ignore_eos=True) == once
    assert engine.core.stats.prefix_hits == 96
    assert few == asked


@pytest.mark.parametrize("size", [4, 64])
def test_nobody_else_gets_what_was_computed_from_few_places(
    make_engine: Make, few: list[int], size: int
) -> None:
    engine = make_engine(kv_compression=FEW, page_size=size)
    plain = make_engine(prefix_cache=None)
    begun = answers(engine)
    assert few
    # The conversation goes on: what is cached of it was computed from all there was.
    for prompt, answer in zip(PROMPTS, begun, strict=True):
        longer = [*prompt, *answer, 5, 9, 11]
        (sequence,) = engine.submit(longer, max_tokens=2, ignore_eos=True)
        done = engine.run()[sequence]
        assert done.tokens == plain.generate(longer, max_tokens=2, ignore_eos=True)
        # All of the prompt, and of the answer what came before the first of few places.
        assert len(prompt) - size < done.admitted.cached_tokens < len(prompt) + 8


def test_what_was_swapped_out_stays_what_it_was(make_engine: Make, few: list[int]) -> None:
    engine = make_engine(
        kv_compression=FEW, page_size=4, preemption=StrategyChoice("swap"), kv_tiers=[host("8MiB")]
    )
    (sequence,) = engine.submit(PROMPTS[0], max_tokens=40, ignore_eos=True)
    while len(engine.answers[sequence].tokens) < 20:
        engine.step()
    assert few
    preempt(engine, sequence)
    engine.run()
    answer = engine.answers[sequence].tokens
    longer = [*PROMPTS[0], *answer, 5]
    (again,) = engine.submit(longer, max_tokens=2, ignore_eos=True)
    assert engine.run()[again].admitted.cached_tokens < len(PROMPTS[0]) + 8


@pytest.mark.parametrize("rows", [1, 4])
def test_a_swap_changes_nothing(make_engine: Make, folder: Path, few: list[int], rows: int) -> None:
    late = StrategyChoice("heavy", {**SOON, "warm_steps": 10, "budget": 0.05})
    fields: dict[str, Any] = {"prefix_cache": None, "max_running": rows}
    engine = make_engine(folder, kv_compression=late, preemption=StrategyChoice("swap"), **fields)
    alone = engine.generate(PROMPTS[1], max_tokens=40, ignore_eos=True)
    whole = make_engine(folder, **fields).generate(PROMPTS[1], max_tokens=40, ignore_eos=True)
    assert alone != whole
    assert few
    (sequence,) = engine.submit(PROMPTS[1], max_tokens=40, ignore_eos=True)
    for at in (11, 12, 25):
        while len(engine.answers[sequence].tokens) < at:
            engine.step()
        preempt(engine, sequence)
        # Another one takes its row.
        others = engine.submit(PROMPTS[0], max_tokens=2, ignore_eos=True)
        engine.core.abort(others)
        engine.submit(PROMPTS[3], max_tokens=3, ignore_eos=True)
    assert engine.run()[sequence].tokens == alone
    assert engine.core.stats.swaps == 3
    assert not engine.core._runner._attention._selection._rows.known


def test_one_that_is_computed_again_says_what_is_said_behind_what_it_had(
    make_engine: Make, folder: Path, few: list[int]
) -> None:
    engine = make_engine(folder, kv_compression=FEW, prefix_cache=None)
    (sequence,) = engine.submit(PROMPTS[2], max_tokens=40, ignore_eos=True)
    while len(engine.answers[sequence].tokens) < 22:
        engine.step()
    assert few
    preempt(engine, sequence, PreemptionMode.RECOMPUTE)
    tokens = engine.run()[sequence].tokens
    behind = [*PROMPTS[2], *tokens[:22]]
    assert tokens[22:] == engine.generate(behind, max_tokens=18, ignore_eos=True)


@pytest.mark.parametrize("chunk", [1, 7, 8])
def test_it_does_not_matter_what_was_cached_or_in_which_chunks(
    make_engine: Make, few: list[int], chunk: int
) -> None:
    """A prompt's last chunk may have one token, which is not decoded for that."""
    prompt = PROMPTS[0][:65]
    alone = make_engine(kv_compression=FEW).generate(prompt, max_tokens=40, ignore_eos=True)
    assert few
    engine = make_engine(
        kv_compression=FEW,
        page_size=4,
        max_batch_tokens=64,
        scheduler=StrategyChoice("fcfs", {"max_prefill_chunk": chunk}),
    )
    several = [engine.generate(prompt, max_tokens=40, ignore_eos=True) for _ in range(2)]
    ids = engine.submit(prompt, n=3, max_tokens=40, ignore_eos=True)
    done = engine.run()
    several += [done[i].tokens for i in ids]
    assert several == [alone] * 5


@pytest.mark.parametrize("seed", few_of(range(3)))
def test_it_gets_along_with_everything_else(make_engine: Make, few: list[int], seed: int) -> None:
    """Few pages, preemption, caches, tiers, drafts and forks: all ends, and nothing is left."""
    dice = random.Random(seed)
    drafter = dice.choice([None, StrategyChoice("ngram"), StrategyChoice("lookahead")])
    engine = make_engine(
        kv_compression=FEW,
        page_size=4,
        kv_pages=110,
        max_batch_tokens=96,
        preemption=StrategyChoice(["recompute", "swap"][seed % 2]),
        prefix_cache=StrategyChoice(dice.choice(["hash", "radix"])),
        kv_tiers=[host("1MiB")] if dice.random() < 0.5 else [],
        kv_codec=StrategyChoice("int8") if seed == 2 else None,
        drafter=drafter,
    )
    asked = []
    for i in range(12):
        prompt = PROMPTS[i % 4][: dice.randint(20, 120)]
        asked += engine.submit(
            prompt, n=dice.choice([1, 1, 3]), max_tokens=dice.randint(1, 60), ignore_eos=True
        )
        for _ in range(dice.randint(0, 12)):
            engine.step()
    done = engine.run()
    assert few
    assert {(done[i].finished.reason, done[i].finished.error) for i in asked} == {(LENGTH, None)}


def test_one_that_raises_is_fenced_and_the_answer_is_exact(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = answers(make_engine())

    def broken(self: Any, *args: Any) -> Any:
        raise ArithmeticError("not today")

    monkeypatch.setattr(Heavy, "select", broken)
    engine = make_engine(kv_compression=FEW, fault_limit=3, prefix_cache=None)
    assert answers(engine) == plain
    (row,) = [row for row in engine.core.strategies.report() if row.kind == "kv_compression"]
    assert (row.state, row.faults) == ("quarantined", 3)
    assert "kv_compression" not in engine.core.strategies.names


def test_the_predictor_serves_the_model_that_it_was_trained_for(make_engine: Make) -> None:
    network = embedded.folder("nano").with_name("nano-predictor")
    soon = {**SOON, "dense_layers": 1, "network": str(network)}
    plain = answers(make_engine())
    whole = StrategyChoice("predictor", {**soon, "budget": 1.0})
    assert answers(make_engine(kv_compression=whole)) == plain
    engine = make_engine(kv_compression=StrategyChoice("predictor", {**soon, "budget": 0.2}))
    assert answers(engine) != plain
    (row,) = [row for row in engine.core.strategies.report() if row.kind == "kv_compression"]
    assert (row.name, row.state, row.faults) == ("predictor", "active", 0)
    missing = StrategyChoice("predictor", {"network": "/nowhere"})
    with pytest.raises(ValueError, match=r"no predictor heads in /nowhere"):
        make_engine(kv_compression=missing)


def test_it_may_come_and_go_while_the_engine_runs(make_engine: Make, few: list[int]) -> None:
    engine = make_engine()
    ids = [engine.submit(p, max_tokens=60, ignore_eos=True)[0] for p in PROMPTS]
    for _ in range(12):
        engine.step()
    swap(engine, Kind.KV_COMPRESSION, FEW)
    for _ in range(20):
        engine.step()
    assert few
    swap(engine, Kind.KV_COMPRESSION)
    del few[:]
    done = engine.run()
    assert not few
    assert all(len(done[i].tokens) == 60 for i in ids)


def test_one_that_has_just_come_is_not_asked_of_whom_it_does_not_know(
    make_engine: Make, few: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(kv_compression=FEW, preemption=StrategyChoice("swap"), prefix_cache=None)
    (sequence,) = engine.submit(PROMPTS[1], max_tokens=40, ignore_eos=True)
    while len(engine.answers[sequence].tokens) < 20:
        engine.step()
    assert few
    swap(engine, Kind.KV_COMPRESSION, FEW)
    told: list[str] = []
    for name in ("leave", "enter", "admit"):
        call = getattr(Heavy, name)

        def noted(self: Any, *args: Any, name: str = name, call: Any = call) -> Any:
            told.append(name)
            return call(self, *args)

        monkeypatch.setattr(Heavy, name, noted)
    # Before the first step in which it may be asked of that sequence.
    preempt(engine, sequence)
    assert not told
    assert len(engine.run()[sequence].tokens) == 40
    assert told == ["admit"]


def test_a_device_is_refused_in_a_sentence(make_engine: Make) -> None:
    choice = StrategyChoice("fcfs")
    config = EngineConfig(
        str(small()),
        choice,
        None,
        StrategyChoice("lru"),
        StrategyChoice("recompute"),
        kv_compression=FEW,
        device="cuda:0",
    )
    with pytest.raises(
        EngineConfigError, match=r"^kv_compression is 'heavy' and device 'cuda:0': it is supported"
    ):
        assemble(config, PluginHost(CATALOG), lambda stage, fraction: None)
    off = msgspec.structs.replace(config, kv_compression=None)
    with pytest.raises(EngineConfigError, match="finds 0 GPUs"):
        assemble(off, PluginHost(CATALOG), lambda stage, fraction: None)
    engine = make_engine()
    engine.core.strategies.can_compress = False
    engine.core.swaps.start(SwapStrategy(1, "kv_compression", [FEW]))
    (answer,) = engine.core.swaps.complete_ready()
    assert answer.error == "kv_compression is supported on CPUs only"
