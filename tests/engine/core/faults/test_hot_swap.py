"""Hot swap between steps: nothing fails, changes or stays open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gatewayd_engine.core.hot_swap import EngineSwapRefused
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import SetLimits
from gatewayd_engine.runner.cpu import Runner
from gatewayd_hooks.helpers.handover import HandoverState
from gatewayd_hooks.strategy import Kind
from gatewayd_prefix_radix.strategy import Radix
from tests.engine.core.hot_swaps import OFFERS, TIGHT, swap
from tests.engine.core.prompts import PROMPTS, answers

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("kind", "overlaps"),
    [
        *((kind, False) for kind in OFFERS),
        *((kind, True) for kind in (Kind.PREFIX_CACHE, Kind.EVICTION, Kind.KV_TIER)),
    ],
)
def test_a_swap_in_the_middle_changes_no_token(
    make_engine: Make,
    undisturbed: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    kind: Kind,
    overlaps: bool,
) -> None:
    monkeypatch.setattr(Runner, "overlaps", overlaps)
    engine = make_engine(**TIGHT)
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True)[0] for p in PROMPTS]
    turn = 0
    while engine.core.has_work:
        engine.step()
        swap(engine, kind, *OFFERS[kind][turn % len(OFFERS[kind])])
        engine.core.check()
        turn += 1
    assert turn > 12
    assert [engine.answers[i].tokens for i in ids] == undisturbed
    assert engine.core.stats.faults == 0


def test_a_prefix_cache_and_an_eviction_that_come_again_know_what_they_knew(
    make_engine: Make,
) -> None:
    engine = make_engine()
    prompt = list(range(40, 140))
    engine.generate(prompt, max_tokens=2)
    cached = engine.core.stats.cached_pages
    assert cached >= 6
    assert swap(engine, Kind.PREFIX_CACHE, StrategyChoice("hash"))
    assert swap(engine, Kind.EVICTION, StrategyChoice("lru"))
    assert engine.core.stats.cached_pages == cached
    (again,) = engine.submit(prompt, max_tokens=2)
    engine.run()
    assert engine.answers[again].admitted.cached_tokens == 99
    # What was switched off in between comes back empty, and learns again.
    assert not swap(engine, Kind.PREFIX_CACHE)
    assert not swap(engine, Kind.PREFIX_CACHE, StrategyChoice("hash"))
    assert engine.core.stats.cached_pages == 0
    for expected in (0, 99):
        (again,) = engine.submit(prompt, max_tokens=2)
        engine.run()
        assert engine.answers[again].admitted.cached_tokens == expected


def test_each_takes_the_state_of_its_like(make_engine: Make) -> None:
    engine = make_engine(
        drafter=StrategyChoice("ngram"), spec_controller=StrategyChoice("adaptive")
    )
    swap(engine, Kind.PREFIX_CACHE, StrategyChoice("radix"))
    prompt = list(range(40, 140))
    engine.generate(prompt, max_tokens=2)
    assert swap(engine, Kind.PREFIX_CACHE, StrategyChoice("radix"))
    assert swap(engine, Kind.SPEC_CONTROLLER, StrategyChoice("adaptive"))
    for name in ("lfu", "cost", "retention"):
        assert not swap(engine, Kind.EVICTION, StrategyChoice(name))
        assert swap(engine, Kind.EVICTION, StrategyChoice(name))
        (again,) = engine.submit(prompt, max_tokens=2)
        engine.run()
        assert engine.answers[again].admitted.cached_tokens == 99
        engine.core.check()
    assert engine.core.stats.faults == 0


def test_the_order_of_eviction_is_handed_over(make_engine: Make) -> None:
    engine = make_engine()
    for start in (40, 240, 140):
        engine.generate(list(range(start, start + 40)), max_tokens=2)
    before = list(engine.core.strategies.bound[Kind.EVICTION]._pages)
    assert before != sorted(before)
    assert swap(engine, Kind.EVICTION, StrategyChoice("lru"))
    assert list(engine.core.strategies.bound[Kind.EVICTION]._pages) == before


@pytest.mark.parametrize(
    ("kind", "choices", "words"),
    [
        (Kind.SCHEDULER, [StrategyChoice("fcsf")], "did you mean scheduler.fcfs"),
        (Kind.SCHEDULER, [StrategyChoice("fcfs", {"chunk": 1})], "chunk is unknown"),
        (Kind.SCHEDULER, [], "needs a scheduler"),
        (Kind.ROUTER, [StrategyChoice("prefix")], "an engine has no router"),
        (Kind.LOGITS_PROCESSOR, [StrategyChoice("bias"), StrategyChoice("x")], "is not installed"),
    ],
)
def test_what_cannot_be_used_is_refused_and_the_old_one_goes_on(
    make_engine: Make,
    undisturbed: list[list[int]],
    kind: Kind,
    choices: list[StrategyChoice],
    words: str,
) -> None:
    engine = make_engine()
    bound, chain = dict(engine.core.strategies.bound), list(engine.core.strategies.chain.links)
    with pytest.raises(EngineSwapRefused, match=words):
        swap(engine, kind, *choices)
    assert engine.core.strategies.bound == bound
    assert engine.core.strategies.chain.links == chain
    assert answers(engine) == undisturbed


def test_one_that_cannot_open_is_closed_and_refused(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    old = engine.core.strategies.bound[Kind.SCHEDULER]
    closed: list[Any] = []

    def no(self: Any, resources: Any) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as context:
        context.setattr(type(old), "open", no)
        context.setattr(type(old), "close", lambda self: closed.append(self))
        with pytest.raises(EngineSwapRefused, match="no room"):
            swap(engine, Kind.SCHEDULER, StrategyChoice("fcfs"))
    (new,) = closed
    assert new is not old
    assert engine.core.strategies.bound[Kind.SCHEDULER] is old


@pytest.mark.parametrize(
    ("kind", "name", "method"),
    [
        (Kind.SCHEDULER, "priority", "enqueue"),
        (Kind.EVICTION, "lfu", "release"),
        (Kind.PREFIX_CACHE, "hash", "begin"),
    ],
)
def test_one_that_cannot_learn_what_the_engine_knows_gives_way_to_the_one_before(
    make_engine: Make,
    undisturbed: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    kind: Kind,
    name: str,
    method: str,
) -> None:
    engine = make_engine(max_running=4)  # so that some wait
    engine.generate(list(range(40, 140)), max_tokens=2)
    if kind is Kind.PREFIX_CACHE:
        swap(engine, kind)  # the same one would get its state and need not begin
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True)[0] for p in PROMPTS]
    engine.step()
    before = engine.core.strategies.configured(kind)
    new = engine.core.strategies.open(kind, StrategyChoice(name))

    def no(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("cannot")

    with monkeypatch.context() as context:
        context.setattr(type(new), method, no)
        with pytest.raises(EngineSwapRefused, match="cannot take over"):
            swap(engine, kind, StrategyChoice(name))
    engine.step()
    assert engine.core.strategies.configured(kind) == before
    assert type(engine.core.strategies.bound.get(kind)) is not type(new)
    engine.run()
    assert [engine.answers[i].tokens for i in ids] == undisturbed


def breaking(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let the engine's own code raise while a strategy takes over, so many times."""
    follow = Pages.replace_eviction
    left = iter(range(times))

    def raises(self: Pages, plan: Any) -> None:
        follow(self, plan)
        if next(left, None) is not None:
            raise ZeroDivisionError("cannot")

    monkeypatch.setattr(Pages, "replace_eviction", raises)


def test_what_the_engine_raises_while_one_takes_over_brings_the_one_before_back(
    make_engine: Make, undisturbed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    engine.generate(list(range(40, 140)), max_tokens=2)
    breaking(monkeypatch, times=1)
    with pytest.raises(EngineSwapRefused, match="cannot take over: cannot"):
        swap(engine, Kind.EVICTION, StrategyChoice("lfu"))
    assert answers(engine) == undisturbed
    assert engine.core.strategies.names["eviction"] == "lru"
    assert type(engine.core.strategies.bound[Kind.EVICTION]).__name__ == "Lru"


def test_an_engine_that_cannot_go_back_either_says_nothing_of_a_refusal(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    engine.generate(list(range(40, 140)), max_tokens=2)
    with monkeypatch.context() as context:
        breaking(context, times=2)
        with pytest.raises(ZeroDivisionError):
            swap(engine, Kind.EVICTION, StrategyChoice("lfu"))


@pytest.mark.parametrize("why", ["swap", "fault", "retry"])
def test_a_strategy_is_filled_after_a_fault_of_another_that_interrupted_it(
    make_engine: Make,
    undisturbed: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    why: str,
) -> None:
    engine = make_engine(eviction=StrategyChoice("lfu"), max_running=4)
    engine.generate(list(range(40, 140)), max_tokens=2)
    assert engine.core.stats.cached_pages
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True)[0] for p in PROMPTS]
    for _ in range(3):
        engine.step()
    strategies = engine.core.strategies
    # With an empty prefix cache an eviction begins without pages: a new instance is opened.
    faulty = type(strategies.bound[Kind.EVICTION])
    open_sound, left = faulty.open, iter(range(1))

    def fails_once(self: Any, resources: Any) -> None:
        if next(left, None) is not None:
            raise MemoryError("no room")
        open_sound(self, resources)

    monkeypatch.setattr(faulty, "open", fails_once)
    if why == "swap":
        assert not swap(engine, Kind.PREFIX_CACHE, StrategyChoice("radix"))
    elif why == "retry":
        strategies.schedule_retry(Kind.PREFIX_CACHE, StrategyChoice("radix"))
        engine.core._recovery.retry_strategies()
    else:
        engine.core._recovery.fall_back(Kind.PREFIX_CACHE, ZeroDivisionError())
    found = strategies.bound.get(Kind.PREFIX_CACHE)
    assert found is None if why == "fault" else isinstance(found, Radix)
    before = engine.core.stats.faults
    assert before == (2 if why == "fault" else 1)
    assert not engine.core.stats.cached_pages, "the new prefix cache knows none"
    engine.core.check()
    engine.run()
    assert [engine.answers[i].tokens for i in ids] == undisturbed
    assert type(strategies.bound[Kind.EVICTION]) is faulty
    assert engine.core.stats.faults == before


def test_an_eviction_that_forgets_pages_while_taking_over_is_refused(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    engine.generate(list(range(40, 140)), max_tokens=2)
    old = engine.core.strategies.bound[Kind.EVICTION]
    monkeypatch.setattr(type(old), "export_state", lambda self: HandoverState("lru/1", (1, 2)))
    with pytest.raises(EngineSwapRefused, match="took over 2 of"):
        swap(engine, Kind.EVICTION, StrategyChoice("lru"))
    assert engine.core.strategies.bound[Kind.EVICTION] is old


def test_a_choice_forgives_what_was_counted_before(
    make_engine: Make, undisturbed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        broken = "gatewayd_sched_priority.strategy.WeightedClasses.plan"
        context.setattr(broken, lambda self, view: None)
        engine = make_engine(scheduler=StrategyChoice("priority"), fault_limit=1)
        assert answers(engine) == undisturbed
    assert engine.core.strategies.names["scheduler"] == "fcfs"
    swap(engine, Kind.SCHEDULER, StrategyChoice("priority"))
    assert answers(engine) == undisturbed
    assert engine.core.strategies.names["scheduler"] == "priority"
    assert engine.core.stats.faults == 1


@pytest.mark.usefixtures("depth")
def test_an_answer_keeps_the_processors_that_it_began_with(make_engine: Make) -> None:
    forced = [(9, 100.0)]
    engine = make_engine()
    bias = engine.core.strategies.chain.links[1].strategy
    closed: list[int] = []
    bias.close = lambda: closed.append(1)
    (old,) = engine.submit(PROMPTS[0], max_tokens=8, ignore_eos=True, logit_bias=forced)
    engine.step()
    engine.step()
    swap(engine, Kind.LOGITS_PROCESSOR, StrategyChoice("min_tokens"))
    assert not closed
    (new,) = engine.submit(PROMPTS[0], max_tokens=8, ignore_eos=True, logit_bias=forced)
    done = engine.run()
    assert done[old].tokens == [9] * 8
    assert 9 not in done[new].tokens
    (later,) = engine.submit(PROMPTS[0], max_tokens=1)
    engine.run()
    assert closed == [1]
    assert done[later].finished.error is None
    swap(engine, Kind.LOGITS_PROCESSOR, StrategyChoice("bias"))
    assert engine.generate(PROMPTS[0], max_tokens=8, ignore_eos=True, logit_bias=forced) == [9] * 8


def test_a_processor_that_stays_as_it_was_is_the_same_one(make_engine: Make) -> None:
    engine = make_engine()
    penalties, bias, _ = engine.core.strategies.chain.links
    swap(engine, Kind.LOGITS_PROCESSOR, StrategyChoice("bias"), StrategyChoice("penalties"))
    assert engine.core.strategies.chain.links == [bias, penalties]


def test_limits_change_between_two_steps_up_to_those_of_the_start(make_engine: Make) -> None:
    engine = make_engine(max_batch_tokens=64)
    (sequence,) = engine.submit(list(range(20, 220)), max_tokens=2)
    sizes = []
    for limit in (64, 16, 1000):
        engine.core.swaps.limit(SetLimits(limit, 50.0))
        sizes.append(engine.step().stats.step_tokens)
    assert sizes == [64, 16, 64]
    assert len(engine.run()[sequence].tokens) == 2
