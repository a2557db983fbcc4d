"""Time attribution: causes of each sequence's time, step by step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import StepOutput
from gatewayd_engine.process.time_causes import Cause
from tests.engine.core.conftest import Harness, MakeEngine


class Watcher:
    """Steps an engine, and follows what it tells.

    Attributes:
        history: what each sequence did in each step, by what was told of it.
        shares: of the chunks that were told of, in the same order.
    """

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.history: dict[int, list[Cause]] = {}
        self.shares: dict[int, list[float]] = {}
        self._now: dict[int, Cause] = {}

    def step(self) -> StepOutput:
        output = self.harness.step()
        moved = np.frombuffer(output.moved, np.int64).tolist()
        shares = np.frombuffer(output.shares, np.float32).tolist()
        causes = [Cause(cause) for cause in output.causes]
        assert len(set(moved)) == len(moved)
        for sequence, cause, share in zip(moved, causes, shares, strict=True):
            self._now[sequence] = cause
            if cause in (Cause.PREFILL, Cause.RECOMPUTE):
                self.shares.setdefault(sequence, []).append(share)
        for sequence, cause in self._now.items():
            self.history.setdefault(sequence, []).append(cause)
        for finished in output.finished:
            del self._now[finished.sequence]
        return output

    def run(self) -> None:
        while self.harness.core.has_work:
            self.step()

    def order(self, sequence: int) -> list[Cause]:
        """What it did, without repetitions."""
        found = self.history[sequence]
        return [cause for at, cause in enumerate(found) if at == 0 or found[at - 1] != cause]


def prompt(seed: int, length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(300, 4000, length)]


def test_one_alone_is_computed_from_the_first_step_and_told_once(make_engine: MakeEngine) -> None:
    watcher = Watcher(make_engine())
    (one,) = watcher.harness.submit(prompt(1, 40), max_tokens=5, ignore_eos=True)
    first = watcher.step()
    assert (first.moved, first.crowd) == (np.int64(one).tobytes(), 1.0)
    second = watcher.step()
    assert (second.causes, second.crowd) == (bytes([Cause.DECODE]), 0.0)
    assert watcher.step().moved == b""
    watcher.run()
    assert watcher.order(one) == [Cause.PREFILL, Cause.DECODE]
    assert watcher.shares[one] == [1.0]


def test_chunks_and_the_share_that_others_have_in_their_steps(make_engine: MakeEngine) -> None:
    watcher = Watcher(make_engine(max_batch_tokens=64))
    (early,) = watcher.harness.submit(prompt(1, 20), max_tokens=30, ignore_eos=True)
    watcher.step()
    (long,) = watcher.harness.submit(prompt(2, 180), max_tokens=3, ignore_eos=True)
    crowds = [watcher.step().crowd for _ in range(2)]
    assert crowds == [63 / 64, 63 / 64]
    (behind,) = watcher.harness.submit(prompt(3, 30), max_tokens=3, ignore_eos=True)
    watcher.step()
    watcher.run()
    assert watcher.order(long) == [Cause.PREFILL, Cause.DECODE]
    assert watcher.shares[long][:2] == [np.float32(63 / 64)] * 2
    assert watcher.order(behind) == [Cause.PREFILL, Cause.DECODE]
    assert len(watcher.shares[behind]) == 2, "its first chunk had what was left of a budget"
    assert watcher.order(early) == [Cause.PREFILL, Cause.DECODE]


def test_who_waits_is_told_what_for(make_engine: MakeEngine) -> None:
    watcher = Watcher(make_engine(max_batch_tokens=32, max_running=2))
    submit: Callable[..., list[int]] = watcher.harness.submit
    (first,) = submit(prompt(1, 100), max_tokens=3, ignore_eos=True)
    (second,) = submit(prompt(2, 10), max_tokens=3, ignore_eos=True)
    (third,) = submit(prompt(3, 10), max_tokens=3, ignore_eos=True)
    watcher.run()
    assert watcher.order(first) == [Cause.PREFILL, Cause.DECODE]
    assert watcher.order(second) == [Cause.TURN, Cause.PREFILL, Cause.DECODE]
    assert watcher.order(third) == [Cause.TURN, Cause.ROWS, Cause.PREFILL, Cause.DECODE]


def test_too_few_pages_and_who_gives_way(make_engine: MakeEngine) -> None:
    watcher = Watcher(make_engine(kv_pages=12, prefix_cache=None))
    ids = [watcher.harness.submit(prompt(i, 60), max_tokens=60, ignore_eos=True)[0] for i in (1, 2)]
    (last,) = watcher.harness.submit(prompt(3, 60), max_tokens=4, ignore_eos=True)
    preempted: list[int] = []
    while watcher.harness.core.has_work:
        preempted += watcher.step().preempted
    assert preempted
    for sequence in ids:
        again = [Cause.PREEMPTED, Cause.RECOMPUTE, Cause.DECODE] * preempted.count(sequence)
        assert watcher.order(sequence) == [Cause.PREFILL, Cause.DECODE, *again]
    assert Cause.PAGES in watcher.order(last)


def test_a_preemption_by_prompt_compaction_is_told_too(make_engine: MakeEngine) -> None:
    settings = {"at_least": 64, "recent": 10, "queries": 24, "ratio": 4}
    engine = make_engine(
        kv_compression=StrategyChoice("matching", settings),
        page_size=8,
        kv_pages=64,
        prefix_cache=None,
        max_batch_tokens=100,
    )
    watcher = Watcher(engine)
    (short,) = engine.submit(prompt(1, 60), max_tokens=30, ignore_eos=True)
    watcher.step()
    (long,) = engine.submit(prompt(2, 150), max_tokens=9, ignore_eos=True)
    watcher.step()
    # There is room for the rest of the prompt, and its compaction frees too few of its pages.
    pages, sequence = engine.core._pages, engine.core._queue.find(long)
    assert sequence is not None
    shared = list(sequence.pages)
    for page in shared:
        pages.share(page)
    taken = [pages.allocate() for _ in range(pages.num_available - 6)]
    assert watcher.step().preempted == [long]
    watcher.step()
    pages.release([*shared, *taken])
    watcher.run()
    assert watcher.order(short) == [Cause.PREFILL, Cause.DECODE]
    again = [Cause.PREEMPTED, Cause.RECOMPUTE, Cause.DECODE]
    assert watcher.order(long) == [Cause.PREFILL, *again]


def test_one_that_begins_like_another_waits_for_it(make_engine: MakeEngine) -> None:
    watcher = Watcher(make_engine(max_batch_tokens=32))
    (leader,) = watcher.harness.submit(prompt(1, 100), max_tokens=3, ignore_eos=True)
    watcher.step()
    (other,) = watcher.harness.submit(prompt(1, 100), max_tokens=3, ignore_eos=True)
    watcher.run()
    assert watcher.order(leader) == [Cause.PREFILL, Cause.DECODE]
    assert watcher.order(other) == [Cause.LEADER, Cause.PREFILL, Cause.DECODE]


def test_a_slot_that_another_had_tells_nothing_of_it(make_engine: MakeEngine) -> None:
    watcher = Watcher(make_engine(kv_pages=64))
    for seed in range(3):
        (one,) = watcher.harness.submit(prompt(seed, 40), max_tokens=9, ignore_eos=True)
        watcher.step()
        watcher.step()
        watcher.harness.core.abort([one])
        assert watcher.order(one) == [Cause.PREFILL, Cause.DECODE]


def test_seconds_in_strategies_are_told(make_engine: MakeEngine) -> None:
    watcher = Watcher(make_engine())
    watcher.harness.submit(prompt(1, 40), max_tokens=5, ignore_eos=True)
    plugin_times = watcher.harness.core.strategies.plugin_times
    plugin_times.take_spent()
    before = {f"{kind}.{name}": cost.seconds for (kind, name), cost in plugin_times.costs().items()}
    told = [watcher.step().plugins for _ in range(4)]
    assert all(step["scheduler.fcfs"] > 0 for step in told)
    plugin_times.take_spent()  # what came behind the last of them
    for (kind, name), cost in plugin_times.costs().items():
        key = f"{kind}.{name}"
        spent = cost.seconds - before.get(key, 0.0)
        assert sum(step.get(key, 0.0) for step in told) <= spent + 1e-9, key


def test_who_waits_in_the_slot_of_one_that_waited_is_told_of(make_engine: MakeEngine) -> None:
    watcher = Watcher(make_engine(max_running=1))
    watcher.harness.submit(prompt(1, 40), max_tokens=30, ignore_eos=True)
    for seed in range(3):
        (one,) = watcher.harness.submit(prompt(seed + 2, 40), max_tokens=3, ignore_eos=True)
        for _ in range(3):
            watcher.step()
        watcher.harness.core.abort([one])
        assert watcher.order(one) == [Cause.ROWS]
