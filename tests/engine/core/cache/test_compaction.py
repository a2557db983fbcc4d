"""Prompt compaction: same answer however the compacted keys and values came about."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from gatewayd_engine.kv.compacted_prefix import NO_PAGE
from gatewayd_engine.model import embedded
from gatewayd_engine.offline.quality.texts import bundled
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.inspect_messages import Inspect
from gatewayd_engine.runner.cpu import Runner
from gatewayd_hooks.kv_compression import Compacted
from gatewayd_hooks.preemption import PreemptionMode
from gatewayd_hooks.strategy import Kind
from gatewayd_kvc_matching.strategy import Matching
from tests.engine.core.hot_swaps import swap
from tests.engine.core.prompts import runner_of
from tests.engine.core.scheduling.test_swap_preemption import preempt, write_over_all
from tests.engine.core.small_model import small
from tests.engine.core.tiered_engines import disk, host
from tests.random_cases import few_of

Make = Callable[..., Any]
SETTINGS = {"at_least": 64, "recent": 10, "queries": 24, "ratio": 4}
MATCHING = StrategyChoice("matching", SETTINGS)
TOKENIZER = Tokenizer.from_file(str(embedded.folder("nano") / "tokenizer.json"))
RANDOM = random.Random(3)
PROMPT = [RANDOM.randrange(5, 320) for _ in range(150)]
FIELDS: dict[str, Any] = {"kv_compression": MATCHING, "page_size": 8, "kv_pages": 400}
"""Pages enough for dense copies, too."""
LENGTH = 24
CHAT = [i for text in bundled()[:6] for i in TOKENIZER.encode(text.text).ids][:200]


@pytest.fixture(autouse=True)
def _wide_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that looks everywhere: what is not there any more shows at once."""
    monkeypatch.setattr("tests.engine.core.conftest.default_model", lambda: folder)


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[Compacted]:
    """What has come to stand for others, call by call."""
    found: list[Compacted] = []
    compact = Matching.compact

    def noted(self: Any, *args: Any) -> Compacted:
        found.append(compact(self, *args))
        return found[-1]

    monkeypatch.setattr(Matching, "compact", noted)
    return found


def answer(engine: Any, prompt: list[int] = PROMPT, **fields: Any) -> list[int]:
    found: list[int] = engine.generate(
        prompt, **{"max_tokens": LENGTH, "ignore_eos": True, **fields}
    )
    return found


class Brute:
    """Attends to what stands for a prompt's front, and to all that follows it; keeps it densely."""

    def __init__(self, shape: Any, found: list[Compacted] | None, covered: int) -> None:
        self.shape, self.found, self.covered = shape, found, covered
        self.kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        shape, count = self.shape, len(query)
        new = key_value.view(count, 2, shape.num_kv_heads, shape.head_dim).permute(1, 2, 0, 3)
        if layer in self.kept:
            new = torch.cat((torch.stack(self.kept[layer]), new), 2)
        keys, values = new
        self.kept[layer] = keys, values
        bias = torch.zeros(shape.num_kv_heads, keys.shape[1])
        if self.found is not None:
            few = self.found[layer]
            keys = torch.cat((few.keys, keys[:, self.covered :]), 1)
            values = torch.cat((few.values, values[:, self.covered :]), 1)
            bias = F.pad(few.bias, (0, keys.shape[1] - few.bias.shape[1]))
        group = shape.num_heads // shape.num_kv_heads
        k, v, b = (one.repeat_interleave(group, 0) for one in (keys, values, bias))
        scores = shape.scale * query.transpose(0, 1) @ k.transpose(1, 2) + b[:, None]
        hidden = torch.ones(count, scores.shape[2], dtype=torch.bool).triu(
            scores.shape[2] - count + 1
        )
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
        return (weights @ v).transpose(0, 1).reshape(count, -1)


def brute(engine: Any, found: list[Compacted], covered: int) -> list[int]:
    """The answer by the definition, token by token."""
    decoder = runner_of(engine)._decoder
    attend = Brute(decoder.spec.attention, None, covered)
    with torch.inference_mode():
        at = torch.arange(len(PROMPT))
        hidden = decoder.hidden(torch.tensor(PROMPT), at, attend)
        attend.found = found
        tokens = [int(decoder.logits(hidden[-1:]).argmax())]
        for position in range(len(PROMPT), len(PROMPT) + LENGTH - 1):
            hidden = decoder.hidden(torch.tensor(tokens[-1:]), torch.tensor([position]), attend)
            tokens.append(int(decoder.logits(hidden).argmax()))
    return tokens


def test_the_answer_is_that_of_keys_biases_and_values(
    make_engine: Make, fitted: list[Compacted]
) -> None:
    engine = make_engine(**FIELDS, prefix_cache=None)
    found = answer(engine)
    assert len(fitted) == 3
    assert max(float(few.bias.abs().max()) for few in fitted) > 1
    assert found == brute(engine, fitted, 136)
    plain = answer(make_engine())
    assert found[0] == plain[0]  # it was seen before the prompt became shorter
    assert found != plain


def test_pages_are_free_once_a_prompt_is_shorter(make_engine: Make) -> None:
    engine = make_engine(**FIELDS, prefix_cache=None)
    (one,) = engine.submit(PROMPT, max_tokens=LENGTH, ignore_eos=True)
    engine.step()
    sequence = engine.core._queue.find(one)
    # 136 tokens have 34 keys, rounded up to 5 pages, one more with biases; 14 tokens follow.
    assert (sequence.front.covered, sequence.front.kept) == (136, 40)
    assert len(sequence.pages) == 19
    assert sequence.pages.count(NO_PAGE) == 17 - 6
    assert engine.core.stats.held_pages == 5 + 1 + 2
    assert (engine.core.stats.compactions, engine.core.stats.compacted_pages) == (1, 17 - 6)
    engine.core.check()
    plain = make_engine(page_size=8, prefix_cache=None)
    plain.submit(PROMPT, max_tokens=LENGTH, ignore_eos=True)
    plain.step()
    assert plain.core.stats.held_pages == 19
    engine.run()
    assert engine.core.stats.free_pages == 400


@pytest.mark.parametrize("cache", [None, "hash", "radix"])
@pytest.mark.parametrize("mode", list(PreemptionMode))
def test_it_is_the_same_after_a_preemption(
    make_engine: Make, fitted: list[Compacted], cache: str | None, mode: PreemptionMode
) -> None:
    choice = None if cache is None else StrategyChoice(cache)
    engine = make_engine(**FIELDS, prefix_cache=choice, preemption=StrategyChoice("swap"))
    calm = answer(engine)
    calls = len(fitted)
    (one,) = engine.submit(PROMPT, max_tokens=LENGTH, ignore_eos=True)
    for at in (3, 10, 11):
        while len(engine.answers[one].tokens) < at:
            engine.step()
        preempt(engine, one, mode)
        if mode is PreemptionMode.SWAP:
            write_over_all(engine)
        engine.core.check()
    assert engine.run()[one].tokens == calm
    again = 1 if mode is PreemptionMode.SWAP else 4
    assert len(fitted) == calls * (1 + again)
    engine.core.check()


@pytest.mark.parametrize("chunk", [7, 64, 149])
def test_it_does_not_depend_on_chunks_nor_on_what_was_cached(make_engine: Make, chunk: int) -> None:
    alone = answer(make_engine(**FIELDS, prefix_cache=None))
    engine = make_engine(**FIELDS, max_batch_tokens=chunk)
    assert [answer(engine) for _ in range(2)] == [alone, alone]
    assert engine.core.stats.prefix_hits > 100


def test_no_step_overlaps_a_prompt_that_becomes_shorter(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = answer(make_engine(**FIELDS))
    monkeypatch.setattr(Runner, "overlaps", True)
    assert answer(make_engine(**FIELDS)) == alone


@pytest.mark.parametrize("length", [2, LENGTH])
def test_nothing_behind_a_front_is_cached(make_engine: Make, length: int) -> None:
    engine, plain = make_engine(**FIELDS), make_engine(page_size=8)
    first = answer(engine, max_tokens=length)
    longer = [*PROMPT, *first, 77, 78]
    (one,) = engine.submit(longer, max_tokens=1, ignore_eos=True)
    done = engine.run()[one]
    assert done.admitted.cached_tokens == 144  # pages of the prompt, from before it was shorter
    assert done.tokens == answer(plain, longer, max_tokens=1)


@pytest.mark.parametrize("drafter", ["ngram", "lookahead", "medusa"])
def test_guesses_change_nothing(make_engine: Make, fitted: list[Compacted], drafter: str) -> None:
    nano = embedded.folder("nano")  # drafters find nothing in what a random model says
    alone = answer(make_engine(nano, **FIELDS), CHAT, max_tokens=40)
    engine = make_engine(
        nano,
        **FIELDS,
        drafter=StrategyChoice(drafter),
        spec_controller=StrategyChoice("fixed", {"drafts": 5}),
    )
    assert answer(engine, CHAT, max_tokens=40) == alone
    assert engine.core.stats.accepted_tokens > 0
    assert len(fitted) == 2 * 6


def test_an_answer_follows_its_grammar(make_engine: Make) -> None:
    def guided(engine: Any) -> list[int]:
        return answer(engine, guide=("regex", "[a-c]{6}"), ignore_eos=False)

    guide = StrategyChoice("llguidance")
    found = guided(make_engine(small(), **FIELDS, guide=guide))
    assert re.fullmatch("[a-c]{6}", TOKENIZER.decode(found))
    drafter = StrategyChoice("forced")
    assert found == guided(make_engine(small(), **FIELDS, guide=guide, drafter=drafter))


def test_products_of_few_bits_do_not_mind(make_engine: Make, fitted: list[Compacted]) -> None:
    engine = make_engine(small(), **FIELDS, quantizer=StrategyChoice("int8"))
    calm = answer(engine)
    (one,) = engine.submit(PROMPT, max_tokens=LENGTH, ignore_eos=True)
    while len(engine.answers[one].tokens) < 8:
        engine.step()
    preempt(engine, one, PreemptionMode.RECOMPUTE)
    assert engine.run()[one].tokens == calm
    assert len(fitted) == 3 * 2


@pytest.mark.parametrize("codec", ["int8", "fp8"])
def test_a_codec_keeps_the_few_as_it_keeps_others(make_engine: Make, codec: str) -> None:
    fields = {**FIELDS, "kv_codec": StrategyChoice(codec), "preemption": StrategyChoice("swap")}
    engine = make_engine(**fields)
    calm = answer(engine)
    (one,) = engine.submit(PROMPT, max_tokens=LENGTH, ignore_eos=True)
    while len(engine.answers[one].tokens) < 8:
        engine.step()
    preempt(engine, one)
    write_over_all(engine)
    assert engine.run()[one].tokens == calm


def test_one_that_was_swapped_out_comes_back_where_its_few_pages_fit(make_engine: Make) -> None:
    engine = make_engine(**FIELDS, prefix_cache=None, preemption=StrategyChoice("swap"))
    calm = answer(engine)
    (one,) = engine.submit(PROMPT, max_tokens=LENGTH, ignore_eos=True)
    engine.step()
    preempt(engine, one)
    # It has 8 pages, and one to grow into; 19 of tokens.
    pages = engine.core._pages
    others = [pages.allocate() for _ in range(pages.num_available - 9)]
    engine.step()
    assert engine.core._queue.find(one).row >= 0
    pages.release(others)
    assert engine.run()[one].tokens == calm


def test_prompts_that_several_answers_share_stay_whole(
    make_engine: Make, fitted: list[Compacted]
) -> None:
    engine = make_engine(**FIELDS)
    several = engine.submit(PROMPT, n=3, max_tokens=LENGTH, ignore_eos=True)
    done = engine.run()
    assert not fitted
    assert {tuple(done[i].tokens) for i in several} == {tuple(answer(make_engine()))}


def test_short_prompts_stay_whole(make_engine: Make, fitted: list[Compacted]) -> None:
    short = PROMPT[:63]
    assert answer(make_engine(**FIELDS), short) == answer(make_engine(), short)
    assert not fitted


def crowd(seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    shared = [rng.randrange(5, 320) for _ in range(90)]
    return [
        shared[: rng.choice([0, 40, 90])]
        + [rng.randrange(5, 320) for _ in range(rng.randint(8, 100))]
        for _ in range(10)
    ]


@pytest.mark.parametrize("seed", few_of(range(4)))
def test_answers_are_those_made_alone_however_few_pages_there_are(
    make_engine: Make, fitted: list[Compacted], tmp_path: Path, seed: int
) -> None:
    prompts, rng = crowd(seed), random.Random(seed)
    engine = make_engine(**FIELDS, prefix_cache=None)
    alone = [answer(engine, prompt) for prompt in prompts]
    tight = make_engine(
        **{**FIELDS, "kv_pages": 34},
        prefix_cache=StrategyChoice(["hash", "radix"][seed % 2]),
        preemption=StrategyChoice(["swap", "recompute"][seed // 2]),
        kv_tiers=[host("384KiB"), disk(tmp_path)] if seed % 2 else [],
        drafter=StrategyChoice("lookahead") if seed == 2 else None,
        max_batch_tokens=rng.choice([33, 64, 200]),
    )
    ids = [tight.submit(p, max_tokens=LENGTH, ignore_eos=True)[0] for p in prompts]
    while tight.core.has_work:
        tight.step()
        tight.core.check()
        running = [s for s in tight.core._queue if s.row >= 0]
        if running and rng.random() < 0.1:
            preempt(tight, rng.choice(running).id, rng.choice(list(PreemptionMode)))
    assert [tight.answers[i].tokens for i in ids] == alone
    assert tight.core.stats.preemptions > 3
    assert len(fitted) > 2 * 3 * 3
    assert tight.core._placement.offload.swapped_pages == 0


def test_a_sequence_that_fills_the_pool_still_fits(make_engine: Make) -> None:
    alone = answer(make_engine(**FIELDS))
    tight = make_engine(**{**FIELDS, "kv_pages": -(-(len(PROMPT) + LENGTH) // 8)})
    assert answer(tight) == alone
    assert tight.core.stats.preemptions == 0


def test_a_swap_leaves_what_is_compacted_as_it_is(make_engine: Make) -> None:
    engine = make_engine(**FIELDS)
    calm, plain = answer(engine), answer(make_engine())
    (one,) = engine.submit(PROMPT, max_tokens=LENGTH, ignore_eos=True)
    while len(engine.answers[one].tokens) < 5:
        engine.step()
    few = StrategyChoice("heavy", {"at_least": 1, "warm_steps": 1, "every": 64})
    swap(engine, Kind.KV_COMPRESSION, few)  # it is not asked about those that have a front
    assert engine.run()[one].tokens == calm
    swap(engine, Kind.KV_COMPRESSION)
    assert answer(engine) == plain
    swap(engine, Kind.KV_COMPRESSION, MATCHING)
    assert answer(engine) == calm


def test_the_map_of_pages_knows_what_a_sequence_holds(make_engine: Make) -> None:
    engine = make_engine(**FIELDS, prefix_cache=None)
    engine.submit(PROMPT, max_tokens=LENGTH, ignore_eos=True)
    engine.step()
    (pages,) = np.frombuffer(engine.core.inspect(Inspect(1)).pages, np.int32).tolist()
    assert pages == engine.core.stats.held_pages == 8
    engine.run()


@pytest.mark.parametrize(("model", "word"), [("mistral", "windows"), ("gemma2", "softcap")])
def test_models_that_cannot_be_fitted_are_refused_at_start(
    make_engine: Make, checkpoint: Callable[[str], Path], model: str, word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        make_engine(checkpoint(model), **FIELDS)
