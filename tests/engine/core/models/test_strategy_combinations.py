"""Strategy combinations: every strategy of every kind yields the same tokens.

Greedy ones are those of transformers, seeded ones those of an engine that neither guesses, caches
nor keeps anything. The strategies are those that are installed, so a new one is in the draw from
its first day.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gatewayd_engine.kv import host_transfers
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import SwapStrategy
from gatewayd_engine.runner.cpu import Runner
from gatewayd_engine.state.in_flight import InFlight
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.preemption import PreemptionMode, Victim
from gatewayd_hooks.strategy import Kind
from tests.engine.core.conftest import build
from tests.engine.core.hot_swaps import settle
from tests.engine.core.scheduling.test_swap_preemption import kv_of
from tests.engine.core.tiered_engines import disk, evict_all, host
from tests.random_cases import few_of

Make = Callable[..., Any]

RANDOM = random.Random(4)
SHARED = [RANDOM.randrange(2, 4096) for _ in range(70)]
PROMPTS = [
    SHARED[: RANDOM.randrange(71)] + [RANDOM.randrange(2, 4096) for _ in range(1 + 9 * i)]
    for i in range(10)
]
# Text that repeats itself, for drafters that look for that.
PROMPTS += [([*range(20, 32)] * 6)[: 40 + 7 * i] for i in range(3)]
LENGTH = 24

SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0.7, "seed": 1},
    {"temperature": 1.0, "top_p": 0.9, "seed": 2},
    {"temperature": 1.3, "top_k": 20, "seed": 3},
    {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "min_p": 0.01, "seed": 4},
    {"temperature": 0.3, "repetition_penalty": 1.2, "seed": 2**63 - 1},
]
"""How requests with a seed are sampled; the first so many prompts are asked in these ways, too."""
CHOICES = 3
"""Answers to one request, at most."""


def names(kind: Kind) -> list[str]:
    found = [e for e in Catalog.installed().entries if e.kind == kind]
    return sorted(e.name for e in found if e.distribution == "gatewayd")


@dataclass(frozen=True)
class Expected:
    """What every combination has to say.

    Attributes:
        greedy: by prompt.
        seeded: by way of sampling, and by choice.
        kv: keys and values of greedy ones bit for bit, by prompt, shape ``[tokens, ...]``; empty
            where the last digits of numbers may differ.
    """

    greedy: list[list[int]]
    seeded: list[list[list[int]]]
    kv: dict[int, NDArray[np.uint8]] = field(default_factory=dict)

    def said(self, k: int, way: int | None, n: int) -> list[list[int]]:
        """What each answer to a prompt has to say, if there are so many, sampled in a way."""
        return [self.greedy[k]] * n if way is None else self.seeded[way][:n]

    def agrees(self, sequence: int, said: list[int], tokens: list[int]) -> bool:
        """Whether a sequence has said what it had to say."""
        return tokens == said

    def compare_kv(self, engine: Any, sequence: int, said: list[int]) -> None:
        """Keys and values that a sequence has now, if it says one of the greedy answers."""
        of = next((k for k, tokens in enumerate(self.greedy) if tokens is said), None)
        # A second answer to a request begins with the first one's tokens.
        if of in self.kv and engine.core._queue.find(sequence) is not None:
            _, found = kv_of(engine, sequence)
            known = self.kv[of][: len(found)]
            assert np.array_equal(found[: len(known)], known)


@dataclass(frozen=True)
class Combination:
    """What one engine is made of, and what happens to it.

    Attributes:
        fields: of ``EngineConfig``.
        seed: of what is asked when.
        is_shaken: sequences are preempted that need not be, and the cache is evicted.
        inline_bytes: from which size on pages come back beside the layers.
        has_doomed: requests come in between on which a logits processor raises, until it is out
            of service; those are refused.
        overlaps: steps are launched before the one before has landed.
        offers: what takes the place of strategies while they run, by kind; None for nothing.
    """

    fields: dict[str, Any]
    seed: int
    is_shaken: bool = False
    inline_bytes: int = 1 << 20
    has_doomed: bool = False
    overlaps: bool = False
    offers: Mapping[Kind, list[list[StrategyChoice]]] | None = None

    @classmethod
    def drawn(cls, seed: int, path: Path, *, overlaps: bool = False) -> Combination:
        dice = random.Random(seed)

        def one(kind: Kind) -> StrategyChoice:
            return StrategyChoice(dice.choice(names(kind)))

        fcfs = {
            "max_prefill_chunk": dice.choice([0, 5, 33]),
            "prefix_patience": dice.choice([0.0, 0.0, 5.0]),
        }
        scheduler = dice.choice(names(Kind.SCHEDULER))
        controller = dice.choice(["adaptive", "fixed"])
        settings = {"drafts": dice.randint(1, 9)} if controller == "fixed" else {}
        page_size = dice.choice([4, 8, 16])
        tight = -(-(max(map(len, PROMPTS)) + LENGTH) // page_size) + dice.randint(1, 24)
        # A few pages, or all there are.
        memory = dice.choice(["384KiB", "64MiB"])
        tiers = dice.choice(
            [
                [],
                [host(memory)],
                [disk(path)],
                [host(memory), disk(path)],
                [host("384KiB"), disk(path)],
            ]
        )
        fields = {
            "scheduler": StrategyChoice(scheduler, fcfs if scheduler == "fcfs" else {}),
            "prefix_cache": dice.choice([None, *map(StrategyChoice, names(Kind.PREFIX_CACHE))]),
            "eviction": one(Kind.EVICTION),
            "preemption": one(Kind.PREEMPTION),
            "kv_tiers": tiers,
            "drafter": dice.choice([None, *map(StrategyChoice, names(Kind.DRAFTER))]),
            "spec_controller": StrategyChoice(controller, settings),
            "page_size": page_size,
            "kv_pages": dice.choice([512, tight, tight]),
            "max_running": dice.choice([3, 8, 64]),
            "max_batch_tokens": dice.choice([32, 100, 512]),
        }
        if overlaps:
            fields["drafter"] = None  # with one, each step lands before the next
        is_shaken, inline_bytes = dice.random() < 0.5, dice.choice([0, 1 << 20])
        return cls(fields, seed, is_shaken, inline_bytes, dice.random() < 0.5, overlaps)

    def check(self, make_engine: Make, expected: Expected, each: int = 1) -> None:
        """Prompts twice and in each way, in a random order, some while others run.

        Args:
            make_engine: builds the engine.
            expected: what it has to say.
            each: one in so many prompts is asked.
        """
        dice = random.Random(self.seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(host_transfers, "_INLINE_BYTES", self.inline_bytes)
            patch.setattr(Runner, "overlaps", self.overlaps)
            engine = make_engine(**self.fields)
            bias = engine.core.strategies.processors._processors[1]
            patch.setattr(bias, "apply", _raises)
            asked = self._ask(engine, dice, expected, each)
            while expected.kv and engine.core.has_work:
                engine.step()
                one = dice.choice(list(asked))
                expected.compare_kv(engine, one, asked[one])
            done = engine.run()
            assert engine.core.stats.faults == 0 or self.has_doomed
            engine.core.check()
        for i, answer in done.items():
            if i in asked:
                assert answer.finished.error is None
                assert expected.agrees(i, asked[i], answer.tokens), self
            else:
                assert answer.finished.error[0] == "strategy_error"
        engine.core.strategies.close()

    def _ask(
        self, engine: Any, dice: random.Random, expected: Expected, each: int
    ) -> dict[int, list[int]]:
        """Submit everything; what each sequence has to say."""
        order: list[tuple[int, int | None]] = []
        order += [(k, None) for _ in range(2) for k in range(0, len(PROMPTS), each)]
        order += [(k, k) for k in range(len(SAMPLED))]
        dice.shuffle(order)
        asked: dict[int, list[int]] = {}
        for k, way in order:
            n = dice.choice([1, 1, 2, CHOICES])
            fields = {} if way is None else SAMPLED[way]
            wish = {"priority": dice.randrange(3), "retention": (dice.randrange(101), 5.0)}
            ids = engine.submit(
                PROMPTS[k], n=n, max_tokens=LENGTH, ignore_eos=True, **fields, **wish
            )
            asked.update(zip(ids, expected.said(k, way, n), strict=True))
            if self.has_doomed and dice.random() < 0.3:
                engine.submit(PROMPTS[k], max_tokens=LENGTH, logit_bias=[(9, 0.0)])
            for _ in range(dice.randrange(4)):
                if self.is_shaken and dice.random() < 0.3:
                    self._shake(engine, dice)
                if self.offers is not None:
                    self._swap(engine, dice, self.offers)
                engine.step()
        while engine.core.swaps.is_busy:
            settle(engine)
        return asked

    @staticmethod
    def _swap(engine: Any, dice: random.Random, offers: Mapping[Kind, Any]) -> None:
        settle(engine)
        if not engine.core.swaps.is_busy:
            kind = dice.choice(list(offers))
            engine.core.swaps.start(SwapStrategy(1, kind.value, list(dice.choice(offers[kind]))))

    @staticmethod
    def _shake(engine: Any, dice: random.Random) -> None:
        running = list(engine.core._queue.running)
        if not running:
            evict_all(engine)
            return
        victim = Victim(dice.choice(running), dice.choice(list(PreemptionMode)))
        with suppress(InFlight):
            engine.core._placement.preemption.preempt(victim)


def _raises(*args: Any) -> None:
    raise ValueError("not to my taste")


@pytest.fixture(scope="session")
def oracle_answers(oracle: Callable[..., Any]) -> list[list[int]]:
    """What transformers generates, one prompt at a time."""
    import torch

    from gatewayd_engine.model import embedded

    model = oracle(embedded.folder("nano"))
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=LENGTH,
            min_new_tokens=LENGTH,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=5,
        )
        found.append(out[0, len(prompt) :].tolist())
    return found


@pytest.fixture(scope="session")
def expected(oracle_answers: list[list[int]]) -> Expected:
    """Of transformers, and of an engine without anything, one request at a time."""
    plain = build(prefix_cache=None)
    seeded = []
    for k, fields in enumerate(SAMPLED):
        ids = plain.submit(PROMPTS[k], n=CHOICES, max_tokens=LENGTH, ignore_eos=True, **fields)
        done = plain.run()
        seeded.append([done[i].tokens for i in ids])
    assert len({tuple(tokens) for said in seeded for tokens in said}) > CHOICES * len(SAMPLED) - 3
    plain.core.strategies.close()
    return Expected(oracle_answers, seeded)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in (Kind.PREFIX_CACHE, Kind.EVICTION, Kind.PREEMPTION, Kind.DRAFTER)
        for name in names(kind)
    ],
)
def test_each_strategy_alone(make_engine: Make, expected: Expected, kind: Kind, name: str) -> None:
    fields = {
        kind.value: StrategyChoice(name),
        "spec_controller": StrategyChoice("fixed", {"drafts": 6}),
        "kv_pages": 40,
    }
    Combination(fields, 1).check(make_engine, expected, each=4)


@pytest.mark.parametrize("seed", few_of([1, 2, 3]))
def test_a_few_combinations(
    make_engine: Make, expected: Expected, tmp_path: Path, seed: int
) -> None:
    Combination.drawn(seed, tmp_path).check(make_engine, expected, each=2)


@pytest.mark.parametrize("seed", few_of([106, 111]))
def test_a_few_combinations_of_steps_that_overlap(
    make_engine: Make, expected: Expected, tmp_path: Path, seed: int
) -> None:
    Combination.drawn(seed, tmp_path, overlaps=True).check(make_engine, expected, each=2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_combinations(make_engine: Make, expected: Expected, tmp_path: Path) -> None:
    for seed in range(1000, 1200):
        overlaps = seed % 4 == 3
        combination = Combination.drawn(seed, tmp_path / str(seed), overlaps=overlaps)
        combination.check(make_engine, expected)
