"""Multiple choices: several answers per request, shared prompts, aborts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.sampling.random import fork_seed
from gatewayd_hooks.strategy import Kind

Make = Callable[..., Any]
PROMPT = [1, 419, 204, 2061, 356, 1033, 17, 300, 301, 302, 303, 304, 305, 306, 307, 308, 309, 310]


@pytest.mark.usefixtures("depth")
def test_choices_share_one_prompt_and_greedy_ones_agree(make_engine: Make) -> None:
    engine = make_engine(prefix_cache=None)
    ids = engine.submit(PROMPT * 5, n=4, max_tokens=20, ignore_eos=True)
    engine.step()
    engine.step()
    # One page for 16 tokens: 90 prompt tokens are 6 pages, and each choice copies the last.
    assert engine.core.stats.held_pages <= 6 + 4
    answers = engine.run()
    assert len({tuple(answers[i].tokens) for i in ids}) == 1
    # The prompt once, its last token again for three forks, then 19 tokens for each choice.
    assert engine.core.stats.computed_tokens == 90 + 3 + 4 * 19


def test_forked_choices_equal_requests_of_their_own(make_engine: Make) -> None:
    engine = make_engine()
    ids = engine.submit(PROMPT, n=3, max_tokens=24, temperature=1.0, seed=5, ignore_eos=True)
    together = [engine.run()[i].tokens for i in ids]
    assert len({tuple(tokens) for tokens in together}) == 3
    again = engine.submit(PROMPT, n=3, max_tokens=24, temperature=1.0, seed=5, ignore_eos=True)
    assert [engine.run()[i].tokens for i in again] == together


@pytest.mark.parametrize("cache", [None, StrategyChoice("hash")])
def test_each_choice_equals_a_request_of_its_own_with_its_seed(
    make_engine: Make, cache: StrategyChoice | None
) -> None:
    wishes = {"max_tokens": 24, "temperature": 1.0, "top_p": 0.9, "ignore_eos": True}
    engine = make_engine(prefix_cache=cache)
    ids = engine.submit(PROMPT * 2, n=4, seed=5, **wishes)
    answers = engine.run()
    alone = make_engine(prefix_cache=None)
    own = [alone.generate(PROMPT * 2, seed=fork_seed(5, choice), **wishes) for choice in range(4)]
    assert [answers[i].tokens for i in ids] == own
    assert len({tuple(tokens) for tokens in own}) == 4


def test_the_columns_grow_under_a_running_batch(
    make_engine: Make, checkpoint: Callable[[str], Any], prompts: Callable[..., list[list[int]]]
) -> None:
    folder = checkpoint("llama")
    wishes = {"max_tokens": 9, "ignore_eos": True}
    some = prompts(600, 320, 24)
    calm = make_engine(folder, prefix_cache=None, max_running=64, kv_pages=4096)
    calm_ids = [calm.submit(p, **wishes)[0] for p in some]
    done = calm.run()
    wanted = [done[i].tokens for i in calm_ids]
    engine = make_engine(folder, max_running=12, kv_pages=60)
    ids: list[int] = []
    # 256 slots at first: they grow twice, each time with twelve in the middle of their answers.
    for first, last in ((0, 200), (200, 400), (400, 600)):
        for p in some[first:last]:
            ids += engine.submit(p, **wishes)
        for _ in range(4):
            engine.step()
        assert engine.core.stats.num_running == 12
        engine.core.check()
    assert len(engine.core._queue.row) == 1024
    answers = engine.run()
    assert [answers[i].tokens for i in ids] == wanted


@pytest.mark.usefixtures("depth")
def test_a_parent_that_is_aborted_leaves_its_forks_alive(make_engine: Make) -> None:
    engine = make_engine(max_batch_tokens=16)
    ids = engine.submit(PROMPT * 3, n=3, max_tokens=8, ignore_eos=True)
    engine.step()
    engine.core.abort([ids[0]])
    answers = engine.run()
    assert answers[ids[0]].tokens == []
    assert len(answers[ids[1]].tokens) == len(answers[ids[2]].tokens) == 8


@pytest.mark.usefixtures("depth")
def test_an_aborted_fork_never_runs(make_engine: Make) -> None:
    engine = make_engine(max_batch_tokens=16)
    ids = engine.submit(PROMPT * 3, n=3, max_tokens=8, ignore_eos=True)
    engine.step()
    engine.core.abort([ids[1], ids[2]])
    answers = engine.run()
    assert [len(answers[i].tokens) for i in ids] == [8, 0, 0]


@pytest.mark.parametrize("phase", ["waiting", "prefill", "decode", "fork"])
def test_an_abort_frees_every_page_at_once(make_engine: Make, depth: bool, phase: str) -> None:
    engine = make_engine(max_batch_tokens=32, prefix_cache=None)
    ids = engine.submit(PROMPT * 4, n=2 if phase == "fork" else 1, max_tokens=50, ignore_eos=True)
    for _ in range({"waiting": 0, "prefill": 1, "decode": 5, "fork": 4}[phase]):
        engine.step()
    engine.core.abort(ids)
    if depth:
        engine.run()  # what is on its way lands
    assert not engine.core.has_work
    assert engine.core.stats.free_pages == engine.info.num_pages
    engine.core.abort(ids)  # again, and unknown ones
    engine.core.abort([12345])


def test_a_scheduler_can_tell_who_was_admitted_from_who_has_gone(make_engine: Make) -> None:
    engine = make_engine(max_running=1)
    strategies, view = engine.core.strategies, engine.core._queue.view
    told: list[bool] = []

    def dequeue(slot: int) -> None:
        told.append(slot in view.running)
        strategies.bound[Kind.SCHEDULER].dequeue(slot)

    strategies.plan = dataclasses.replace(strategies.plan, dequeue=dequeue)
    engine.submit(PROMPT, max_tokens=3)
    (waiting,) = engine.submit(PROMPT, max_tokens=3)
    engine.step()
    engine.core.abort([waiting])
    assert told == [True, False]
    engine.run()


@pytest.mark.usefixtures("depth")
def test_a_shared_prefix_is_computed_once(make_engine: Make) -> None:
    engine = make_engine(kv_pages=200)
    rng = np.random.default_rng(0)
    shared = rng.integers(6, 4096, 100).tolist()
    engine.submit(shared + rng.integers(6, 4096, 5).tolist(), max_tokens=1)
    engine.run()
    before = engine.core.stats.computed_tokens
    for _ in range(10):
        engine.submit(shared + rng.integers(6, 4096, 5).tolist(), max_tokens=1)
    answers = engine.run()
    # 96 of the 100 tokens fill 6 pages of 16, the others begin the page that the first one left.
    assert engine.core.stats.computed_tokens - before == 10 * 5
    assert all(a.admitted.cached_tokens == 100 for i, a in answers.items() if i > 0)


@pytest.mark.usefixtures("depth")
def test_salts_share_nothing(make_engine: Make) -> None:
    engine = make_engine()
    for salt in (b"a", b"b", b"a"):
        engine.submit(PROMPT * 4, max_tokens=1, salt=salt)
        engine.run()
    cached = [engine.answers[i].admitted.cached_tokens for i in range(3)]
    assert cached == [0, 0, 71]


@pytest.mark.usefixtures("depth")
def test_a_whole_prompt_in_the_cache_still_computes_its_last_token(make_engine: Make) -> None:
    engine = make_engine()
    first = engine.generate(PROMPT[:16] * 2, max_tokens=5)
    assert engine.generate(PROMPT[:16] * 2, max_tokens=5) == first
    assert engine.answers[1].admitted.cached_tokens == 31
