"""Speculation on a device: same answers, one host sync per step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.transfers import PendingHostCopy
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.runner.gpu import draft_steps, widths
from gatewayd_engine.runner.gpu.draft_slots import MOST_SLOTS
from tests.engine.core.fake_drafters import Always, Drawn, Guess, guess_with
from tests.engine.core.prompts import PROMPTS
from tests.engine.core.speculation.test_speculation import REQUESTS, answers, known, speculating
from tests.engine.runner.gpu.host_syncs import watch

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
captured = pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)


@pytest.fixture(autouse=True)
def few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Widths that leave gaps, and one that is soon exceeded."""
    monkeypatch.setattr(widths, "WIDTHS", (2, 4))


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Lines and slots of a line of each replay."""
    seen: list[tuple[int, int]] = []
    replay = draft_steps.DraftedSteps._replay

    def noted(self: Any, batch: Any, lines: int, width: int) -> Any:
        seen.append((lines, width))
        return replay(self, batch, lines, width)

    monkeypatch.setattr(draft_steps.DraftedSteps, "_replay", noted)
    return seen


PLAIN = [0, 1, 2]
"""Requests whose logits nothing changes."""
GREEDY = [i for i, request in enumerate(REQUESTS) if "temperature" not in request]


@pytest.fixture(scope="module")
def once() -> dict[str, list[list[int]]]:
    """What is worked out by the first test that asks."""
    return {}


@pytest.fixture
def wanted(make_device_engine: Make, once: dict[str, list[list[int]]]) -> list[list[int]]:
    """What the requests answer on a device, without drafts: it draws other numbers than a CPU."""
    if not once:
        once["wanted"] = answers(make_device_engine())
    return once["wanted"]


@pytest.mark.parametrize(
    ("make_device_engine", "shape", "right"),
    [("paged", "tree", 0.7), ("captured", "chain", 1.0), ("captured", "tree", 0.7)],
    indirect=["make_device_engine"],
)
def test_answers_are_those_without_drafts(
    make_device_engine: Make, wanted: list[list[int]], shape: str, right: float
) -> None:
    engine = guess_with(speculating(make_device_engine), Guess(known(wanted), right, shape))
    assert answers(engine) == wanted
    stats = engine.core.stats
    assert stats.draft_tokens > 50
    assert stats.accepted_tokens > 30


@pytest.mark.slow
@captured
def test_greedy_answers_are_the_cpus(
    make_device_engine: Make, make_engine: Make, wanted: list[list[int]]
) -> None:
    plain = answers(make_engine())
    assert [wanted[i] for i in GREEDY] == [plain[i] for i in GREEDY]


@captured
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_steps_in_which_all_decode_are_captured(
    make_device_engine: Make, replayed: list[tuple[int, int]], shape: str
) -> None:
    wanted = make_device_engine().generate(PROMPTS[1], max_tokens=40, ignore_eos=True)
    engine = speculating(make_device_engine)
    guess_with(engine, Guess([PROMPTS[1] + wanted], 0.8, shape))
    assert engine.generate(PROMPTS[1], max_tokens=40, ignore_eos=True) == wanted
    # The controller gives five drafts, for which there is no capture.
    assert (1, 4) in replayed
    assert set(replayed) <= {(1, 2), (1, 4)}
    assert engine.core.stats.accepted_tokens > 10


@captured
def test_a_step_is_waited_for_once(
    make_device_engine: Make, wanted: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chains and trees, captured or not: nothing but the pending copy is read."""
    waits = watch(monkeypatch)
    short = [answer[:10] for answer in wanted]
    letters: list[int] = []
    read = PendingHostCopy.read

    def reading(self: PendingHostCopy) -> Any:
        letters.append(1)
        return read(self)

    monkeypatch.setattr(PendingHostCopy, "read", reading)
    for shape in ("chain", "tree"):
        engine = speculating(make_device_engine, max_running=8)
        guess_with(engine, Guess(known(wanted), 0.8, shape))
        ids = [
            engine.submit(PROMPTS[i], max_tokens=10, ignore_eos=True, **REQUESTS[i])[0]
            for i in PLAIN
        ]
        runner = engine.core._runner
        launch = runner.launch
        steps: list[int] = []

        def launching(batch: Any, launch: Any = launch, steps: list[int] = steps) -> Any:
            if batch.drafts is None or batch.num_decode < len(batch):
                return launch(batch)
            steps.append(1)
            letters.clear()
            with waits.watched():
                launched = launch(batch)
            assert not letters

            class Landed:
                def result(self) -> Any:
                    with waits.watched():
                        result = launched.result()
                    assert len(letters) == 1
                    return result

            return Landed()

        monkeypatch.setattr(runner, "launch", launching)
        done = engine.run()
        assert [done[i].tokens for i in ids] == [short[i] for i in PLAIN]
        assert len(steps) > 3
    assert not waits.asked


@pytest.mark.slow
@captured
def test_with_few_pages_and_preemption(make_device_engine: Make, wanted: list[list[int]]) -> None:
    engine = guess_with(
        speculating(make_device_engine, kv_pages=24, page_size=8),
        Guess(known(wanted), 0.8, "tree"),
    )
    assert answers(engine) == wanted
    assert engine.core.stats.preemptions > 0
    assert engine.core.stats.accepted_tokens > 0


@captured
def test_what_drafts_of_trees_leave_in_pages_is_what_was_computed_without(
    make_device_engine: Make, wanted: list[list[int]]
) -> None:
    """The second time the whole of each answer is in the cache, computed by drafts."""
    engine = guess_with(
        speculating(make_device_engine, page_size=4), Guess(known(wanted), 0.9, "tree")
    )
    assert answers(engine) == wanted
    plain = make_device_engine()
    for prompt, answer in [*zip(PROMPTS, wanted, strict=True)][:3]:
        longer = engine.generate(prompt + answer, max_tokens=8, ignore_eos=True)
        assert longer == plain.generate(prompt + answer, max_tokens=8, ignore_eos=True)
    assert engine.core.stats.prefix_hits > 100


@captured
def test_log_probabilities_are_those_without_drafts(make_device_engine: Make) -> None:
    asked = {"max_tokens": 16, "ignore_eos": True, "logprobs": 2}
    found = []
    wanted: list[list[int]] = []
    for guesses in (False, True):
        engine = speculating(make_device_engine) if guesses else make_device_engine()
        if guesses:
            guess_with(engine, Guess(known(wanted), 0.8, "tree"))
        ids = [
            engine.submit(p, **({**asked, "prompt_logprobs": 1} if i % 2 else asked))[0]
            for i, p in enumerate(PROMPTS)
        ]
        done = engine.run()
        wanted = [done[i].tokens for i in ids]
        found.append([(done[i].logprobs, done[i].prompt_logprobs) for i in ids])
    for mine, theirs in zip(*found, strict=True):
        for ours, others in zip(mine, theirs, strict=True):
            assert [(r.token, r.rank) for r in ours] == [(r.token, r.rank) for r in others]
            assert [r.logprob for r in ours] == pytest.approx([r.logprob for r in others], abs=1e-4)


@captured
def test_a_line_has_no_more_drafts_than_a_mask_has_bits(make_device_engine: Make) -> None:
    wanted = make_device_engine().generate(PROMPTS[0], max_tokens=70, ignore_eos=True)
    engine = make_device_engine(
        drafter=StrategyChoice("ngram"),
        spec_controller=StrategyChoice("fixed", {"drafts": 64}),
    )
    guess_with(engine, Always([PROMPTS[0] + wanted], 1.0, "chain"))
    assert engine.generate(PROMPTS[0], max_tokens=70, ignore_eos=True) == wanted
    assert engine.core.stats.step_tokens <= MOST_SLOTS
    assert engine.core.stats.step < 6


@captured
def test_drawn_drafts_are_kept_where_the_model_draws_the_same(
    make_device_engine: Make, wanted: list[list[int]]
) -> None:
    engine = guess_with(speculating(make_device_engine), Drawn(known(wanted), 1.0, "chain"))
    assert answers(engine) == wanted


@captured
def test_numbers_that_a_draft_spoils_are_computed_again_without_it(
    make_device_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [make_device_engine().generate(p, max_tokens=12, ignore_eos=True) for p in PROMPTS[:3]]
    of = [p + answer for p, answer in zip(PROMPTS, wanted, strict=False)]
    engine = guess_with(speculating(make_device_engine), Guess(of, 1.0, "tree"))
    kernels = engine.core._runner._kernels
    spoilt: list[int] = []
    accept = kernels.accept

    def spoiling(said: Any, best: Any, *rest: Any) -> Any:
        counts, first = rest[3], rest[2]
        line = int(counts.argmax())
        if counts[line] > 1 and len(spoilt) < 3:
            best = best.clone()
            best[first[line] + 1] = torch.nan
            spoilt.append(line)
        return accept(said, best, *rest)

    monkeypatch.setattr(kernels, "accept", spoiling)
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True)[0] for p in PROMPTS[:3]]
    done = engine.run()
    assert [done[i].tokens for i in ids] == wanted
    assert len(spoilt) == 3


@captured
def test_a_step_that_fails_is_launched_again_line_by_line(
    make_device_engine: Make, wanted: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line alone may have fewer drafts than the widest of its step had."""
    engine = guess_with(speculating(make_device_engine), Guess(known(wanted), 0.8, "tree"))
    runner = engine.core._runner
    launch = runner.launch
    failed: list[int] = []

    def failing(batch: Any) -> Any:
        if batch.drafts is not None and len(batch) > 1 and len(failed) < 3:
            failed.append(len(batch))
            raise torch.OutOfMemoryError("out of memory")
        return launch(batch)

    monkeypatch.setattr(runner, "launch", failing)
    ids = [
        engine.submit(PROMPTS[i], max_tokens=12, ignore_eos=True, **REQUESTS[i])[0] for i in PLAIN
    ]
    done = engine.run()
    assert [done[i].tokens for i in ids] == [wanted[i][:12] for i in PLAIN]
    assert len(failed) == 3
