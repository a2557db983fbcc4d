"""Time accounting: sequences' engine time sums to the busy time."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.runner.cpu import Runner

Make = Callable[..., Any]


def counts_of(output: Any) -> dict[int, tuple[int, ...]]:
    """Of each that has ended: tokens of its prompt, cached ones, and generated ones."""
    ids = np.frombuffer(output.ended, np.int64).tolist()
    columns = np.frombuffer(output.counts, np.int32).reshape(3, len(ids))
    return {i: tuple(one) for i, one in zip(ids, columns.T.tolist(), strict=True) if any(one)}


def note(output: Any, spent: dict[int, float]) -> None:
    ids = np.frombuffer(output.ended, np.int64).tolist()
    seconds = np.frombuffer(output.spent, np.float64).tolist()
    for sequence, one in zip(ids, seconds, strict=True):
        # One that is aborted behind its end is told of again, with nothing.
        assert sequence not in spent or not one
        spent[sequence] = spent.get(sequence, 0.0) + one


@pytest.mark.parametrize("drafter", [None, StrategyChoice("ngram")])
def test_what_all_took_adds_up_whoever_is_aborted_or_gives_way(
    make_engine: Make, folder: Path, depth: bool, drafter: StrategyChoice | None
) -> None:
    engine = make_engine(folder, kv_pages=24, max_running=8, drafter=drafter)
    rng = random.Random(1)
    spent: dict[int, float] = {}
    ids: list[int] = []
    began = time.perf_counter()
    for step in range(3000):
        if step < 60 and step % 3 == 0:
            prompt = [5, step, *(rng.randrange(100, 300) for _ in range(rng.randint(1, 30)))]
            ids += engine.submit(
                prompt, n=rng.choice((1, 3)), max_tokens=rng.randint(30, 120), ignore_eos=True
            )
        if step % 7 == 3:
            engine.core.abort([rng.choice(ids)])
        if not engine.core.has_work and step > 60:
            break
        note(engine.step(), spent)
    seconds = time.perf_counter() - began
    assert spent.keys() == set(ids)
    busy = engine.core.stats.busy_seconds
    assert abs(sum(spent.values()) - busy) < 1e-6
    assert 0.3 * seconds < busy < seconds
    assert engine.core.stats.preemptions


def test_shares_are_those_of_the_tokens(
    make_engine: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt of 96 tokens beside one of 32 takes three quarters of their step."""
    clock = iter(range(0, 10_000_000, 5))
    monkeypatch.setattr(
        "gatewayd_engine.core.engine_core.time.perf_counter", lambda: float(next(clock))
    )
    engine = make_engine(folder, prefix_cache=None)
    (long,) = engine.submit([3] * 96, max_tokens=1, ignore_eos=True)
    (short,) = engine.submit([4] * 32, max_tokens=1, ignore_eos=True)
    spent: dict[int, float] = {}
    note(engine.step(), spent)
    busy = engine.core.stats.busy_seconds
    assert busy > 0
    assert spent == {long: busy * 0.75, short: busy * 0.25}


def test_who_is_aborted_in_a_step_that_has_not_landed_pays_for_it(
    make_engine: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "overlaps", True)
    engine = make_engine(folder)
    (one,) = engine.submit([3] * 40, max_tokens=50, ignore_eos=True)
    for _ in range(5):
        engine.step()
    engine.core.abort([one])
    assert not engine.core.has_ended
    spent: dict[int, float] = {}
    note(engine.step(), spent)
    assert spent == {one: pytest.approx(engine.core.stats.busy_seconds, abs=1e-9)}


def test_who_never_ran_took_nothing(make_engine: Make, folder: Path) -> None:
    engine = make_engine(folder)
    ids = engine.submit([3] * 40, n=2, max_tokens=50)
    engine.core.abort([*ids, 77])
    spent = np.frombuffer(engine.core.drain_ended().spent, np.float64)
    assert spent.tolist() == [0.0, 0.0, 0.0]


class Watched:
    """By brute force: which places of which sequence a step has computed, and who got a token."""

    def __init__(self, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places: dict[int, set[int]] = defaultdict(set)
        self.made: Counter[int] = Counter()
        launch = engine.core._launch

        def watch(batch: Any, began: float) -> Any:
            columns = (batch.sequences, batch.starts, batch.settled, batch.samples)
            for of, start, count, samples in zip(*[c.tolist() for c in columns], strict=True):
                self.places[of].update(range(start, start + count))
                self.made[of] += samples
            return launch(batch, began)

        monkeypatch.setattr(engine.core, "_launch", watch)


@pytest.mark.parametrize(("overlaps", "shares"), [(False, True), (True, True), (False, False)])
def test_who_took_time_is_told_the_tokens_that_were_computed_each_once(
    make_engine: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, overlaps: bool, shares: bool
) -> None:
    """Chunks, hits, preemptions, several answers, and aborts at any moment, also in a step."""
    monkeypatch.setattr(Runner, "overlaps", overlaps)
    cache = {} if shares else {"prefix_cache": None}
    engine = make_engine(folder, kv_pages=26, max_running=8, max_batch_tokens=24, **cache)
    watched, rng = Watched(engine, monkeypatch), random.Random(3)
    told: dict[int, tuple[int, ...]] = {}
    spent: dict[int, float] = {}
    lengths: dict[int, int] = {}
    aborted: set[int] = set()
    leaves: dict[int, list[int]] = {}
    shared = [rng.randrange(100, 300) for _ in range(48)]
    for step in range(3000):
        if step < 120 and step % 3 == 0:
            own = [rng.randrange(100, 300) for _ in range(rng.randint(1, 60))]
            prompt = shared[: rng.choice((0, 16, 32, 48))] + own
            n = rng.choice((1, 1, 3))
            ids = engine.submit(prompt, n=n, max_tokens=rng.randint(20, 90), ignore_eos=True)
            lengths |= dict.fromkeys(ids, len(prompt))
        if step < 120 and step % 4 == 1:
            aborted.add(gone := rng.choice(list(lengths)))
            engine.core.abort([gone])
        if not engine.core.has_work and step > 120:
            break
        output = engine.step()
        note(output, spent)
        told |= counts_of(output)
        engine.core.abort(leaves.pop(step, []))
        # Some leave while they compute a second time what they had to give up.
        leaves[step + rng.randint(1, 12)] = output.preempted[:1]
    assert engine.core.stats.preemptions
    assert not shares or sum(cached > 0 for _, cached, _ in told.values()) > 10
    left = [of for of in aborted if 0 < len(watched.places[of]) < lengths[of]]
    assert not shares or len(left) > 3, "some are to be left in the middle of their prompts"
    for of, length in lengths.items():
        counted, cached, made = told.get(of, (0, 0, 0))
        admitted = engine.answers[of].admitted
        found = 0 if admitted is None or not watched.places[of] else admitted.cached_tokens
        places = watched.places[of] | set(range(found))
        assert counted == len({place for place in places if place < length}), of
        assert cached == found, of
        # One that is computed behind an end that nobody foresaw is not among these requests.
        assert made == watched.made[of] >= len(engine.answers[of].tokens), of
        assert (spent[of] > 0) == (counted > 0), of


def test_who_is_refused_has_ended_and_took_nothing(make_engine: Make, folder: Path) -> None:
    engine = make_engine(folder)
    (one,) = engine.submit([3] * 40, max_tokens=50)
    engine.core.record_refused([one, 99])
    ended = engine.core.drain_ended()
    assert np.frombuffer(ended.ended, np.int64).tolist() == [99]
    assert np.frombuffer(ended.counts, np.int32).tolist() == [0, 0, 0]
