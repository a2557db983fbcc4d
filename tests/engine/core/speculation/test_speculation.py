"""Speculation: answers equal those without drafts: greedy, seeded, processed, forked, preempted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gatewayd_engine.process.config import StrategyChoice
from tests.engine.core.fake_drafters import Always, Drawn, Guess, guess_with
from tests.engine.core.prompts import PROMPTS

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]

REQUESTS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 11},
    {"temperature": 0.8, "seed": 12, "top_k": 20, "top_p": 0.9},
    {"frequency_penalty": 0.9, "presence_penalty": 0.4, "repetition_penalty": 1.2},
    {"temperature": 1.3, "seed": 13, "repetition_penalty": 1.3, "min_p": 0.05},
    {"logit_bias": [(9, 3.0), (11, -100.0)]},
    {"min_tokens": 20, "ignore_eos": False},
    {"temperature": 1.0},
]
"""One for each prompt; the last takes the engine's own seed."""


def speculating(make_engine: Make, **fields: Any) -> Any:
    return make_engine(
        drafter=StrategyChoice("ngram"),
        spec_controller=StrategyChoice("fixed", {"drafts": 5}),
        **fields,
    )


def answers(engine: Any, count: int = 24, **more: Any) -> list[list[int]]:
    ids = []
    for prompt, request in zip(PROMPTS, REQUESTS, strict=True):
        fields = {"max_tokens": count, "ignore_eos": True, **request, **more}
        ids.append(engine.submit(prompt, **fields)[0])
    done = engine.run()
    assert all(done[i].finished.error is None for i in ids)
    return [done[i].tokens for i in ids]


@pytest.fixture
def plain(make_engine: Make) -> list[list[int]]:
    """What the requests answer without drafts."""
    return answers(make_engine())


def known(answers: list[list[int]]) -> list[list[int]]:
    return [p + a for p, a in zip(PROMPTS, answers, strict=True)]


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
def test_answers_are_those_without_drafts(
    make_engine: Make, plain: list[list[int]], shape: str, right: float
) -> None:
    engine = guess_with(speculating(make_engine), Guess(known(plain), right, shape))
    assert answers(engine) == plain
    stats = engine.core.stats
    assert stats.draft_tokens > 100
    assert (stats.accepted_tokens > 50) == (right > 0)
    if right == 1.0:
        assert stats.step < 24  # fewer steps than tokens of an answer


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_with_few_pages_and_preemption(
    make_engine: Make, plain: list[list[int]], shape: str
) -> None:
    engine = guess_with(
        speculating(make_engine, kv_pages=24, page_size=8), Guess(known(plain), 0.8, shape)
    )
    assert answers(engine) == plain
    assert engine.core.stats.preemptions > 0
    assert engine.core.stats.accepted_tokens > 0


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_what_drafts_leave_in_pages_is_never_found_as_a_prefix(
    make_engine: Make, plain: list[list[int]], shape: str
) -> None:
    """The second time the whole of each answer is in the cache, computed by drafts."""
    engine = guess_with(speculating(make_engine, page_size=4), Guess(known(plain), 0.8, shape))
    assert answers(engine) == plain
    for prompt, answer in zip(PROMPTS, plain, strict=True):
        longer = engine.generate(prompt + answer, max_tokens=8, ignore_eos=True)
        assert longer == make_engine().generate(prompt + answer, max_tokens=8, ignore_eos=True)
    assert engine.core.stats.prefix_hits > 300


def test_answers_to_one_prompt_go_their_own_ways(make_engine: Make) -> None:
    fields = {"n": 4, "max_tokens": 20, "temperature": 1.0, "seed": 5, "ignore_eos": True}
    alone = make_engine()
    ids = alone.submit(PROMPTS[0], **fields)
    done = alone.run()
    wanted = [done[i].tokens for i in ids]
    engine = speculating(make_engine)
    guess_with(engine, Guess([PROMPTS[0] + answer for answer in wanted], 0.9, "chain"))
    ids = engine.submit(PROMPTS[0], **fields)
    done = engine.run()
    assert [done[i].tokens for i in ids] == wanted
    assert engine.core.stats.accepted_tokens > 20


@pytest.mark.parametrize(("cache", "budget"), [("radix", 512), ("hash", 29)])
def test_a_fork_leaves_what_its_parent_has_published(
    make_engine: Make, cache: str, budget: int
) -> None:
    """The parent computes its last prompt token and drafts in one step, which fills the page."""
    prompt = [300 + i for i in range(30)]
    wishes = {"n": 2, "max_tokens": 3, "temperature": 3.0, "seed": 5, "ignore_eos": True}
    alone = make_engine(prefix_cache=None)
    ids = alone.submit(prompt, **wishes)
    done = alone.run()
    wanted = [done[i].tokens for i in ids]
    assert wanted[0][:2] != wanted[1][:2]
    longer = prompt + wanted[0]
    engine = speculating(make_engine, prefix_cache=StrategyChoice(cache), max_batch_tokens=budget)
    if cache == "radix":
        engine.generate([*prompt, 7, 7, 7], max_tokens=1, ignore_eos=True)
    guess_with(engine, Always([prompt + wanted[0]], 1.0, "chain"))
    ids = engine.submit(prompt, **wishes)
    done = engine.run()
    assert [done[i].tokens for i in ids] == wanted
    again = engine.generate(longer, max_tokens=8, ignore_eos=True)
    assert again == alone.generate(longer, max_tokens=8, ignore_eos=True)


def test_only_what_an_answer_has_is_counted_as_kept(make_engine: Make) -> None:
    plain = make_engine().generate(PROMPTS[1], max_tokens=24, ignore_eos=True)
    engine = speculating(make_engine)
    guess_with(engine, Always([PROMPTS[1] + plain], 1.0, "chain"))
    (i,) = engine.submit(PROMPTS[1], max_tokens=24, ignore_eos=True, stop_token_ids=[plain[2]])
    answer = engine.run()[i]
    assert len(answer.tokens) == plain.index(plain[2])
    assert engine.core.stats.accepted_tokens <= len(answer.tokens)


def test_an_end_token_among_the_drafts_ends_the_answer(make_engine: Make) -> None:
    plain = make_engine().generate(PROMPTS[1], max_tokens=24, ignore_eos=True)
    end = plain[9]
    first = plain.index(end)
    engine = speculating(make_engine)
    guess_with(engine, Guess([PROMPTS[1] + plain], 1.0, "chain"))
    (i,) = engine.submit(PROMPTS[1], max_tokens=24, ignore_eos=True, stop_token_ids=[end])
    answer = engine.run()[i]
    assert answer.tokens == plain[:first]
    assert answer.finished.stop_token == end
    for length in range(1, 12):
        assert engine.generate(PROMPTS[1], max_tokens=length, ignore_eos=True) == plain[:length]


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_log_probabilities_are_those_without_drafts(
    make_engine: Make, plain: list[list[int]], shape: str
) -> None:
    def reports(engine: Any) -> list[list[Any]]:
        ids = [
            engine.submit(p, max_tokens=24, ignore_eos=True, logprobs=3, prompt_logprobs=1, **r)[0]
            for p, r in zip(PROMPTS[:4], REQUESTS[:4], strict=True)
        ]
        done = engine.run()
        for i in ids:
            assert [r.token for r in done[i].logprobs] == done[i].tokens
        return [[*done[i].prompt_logprobs, *done[i].logprobs] for i in ids]

    wanted = reports(make_engine())
    engine = guess_with(speculating(make_engine), Guess(known(plain), 0.8, shape))
    for one, other in zip(reports(engine), wanted, strict=True):
        assert [(r.token, r.rank, r.top_tokens) for r in one] == [
            (r.token, r.rank, r.top_tokens) for r in other
        ]
        assert [r.logprob for r in one] == pytest.approx([r.logprob for r in other], abs=1e-4)
    assert engine.core.stats.accepted_tokens > 20


def test_drawn_drafts_leave_greedy_and_seeded_answers_as_they_are(
    make_engine: Make, plain: list[list[int]]
) -> None:
    engine = guess_with(speculating(make_engine), Drawn([], 0.0, "chain"))
    assert answers(engine)[:7] == plain[:7]


def test_one_token_of_a_long_prompt_gets_drafts_beside_its_chunks(
    make_engine: Make, plain: list[list[int]]
) -> None:
    """Chunks of a prompt and decoding with drafts in the same steps."""
    engine = guess_with(
        speculating(make_engine, max_batch_tokens=24), Guess(known(plain), 0.9, "tree")
    )
    assert answers(engine) == plain


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_every_architecture_answers_as_without_drafts(
    make_engine: Make, checkpoint: Callable[[str], Any], architecture: str, shape: str
) -> None:
    """Windows, soft caps, experts, several layouts of heads."""
    folder, prompt = checkpoint(architecture), list(range(3, 60))
    plain = make_engine(folder).generate(prompt, max_tokens=40, ignore_eos=True)
    engine = speculating(make_engine, model=folder)
    vocab = engine.info.vocab_size
    guess_with(engine, Guess([prompt + plain], 0.8, shape, vocab=vocab))
    assert engine.generate(prompt, max_tokens=40, ignore_eos=True) == plain
    assert engine.core.stats.accepted_tokens > 10
