"""Fixtures: in-process engines, and the transformers oracle."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.cache import tier_lookup
from gatewayd_engine.core.build import assemble
from gatewayd_engine.core.engine_core import EngineCore
from gatewayd_engine.kv import host_transfers
from gatewayd_engine.model import embedded
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.loader import read
from gatewayd_engine.model.parts import PluginMatmulParts
from gatewayd_engine.process.config import EngineConfig, StrategyChoice
from gatewayd_engine.process.messages import (
    Admitted,
    Finished,
    ModelInfo,
    PooledOutput,
    SamplingParams,
    StepOutput,
    Submit,
    TenantQuota,
    TokenLogprobs,
)
from gatewayd_engine.runner.cpu import Runner
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from tests.engine.core.prompts import answers
from tests.engine.core.small_model import small

torch.set_num_threads(1)

CATALOG = Catalog.installed()
"""Read once: an engine's own process reads it once, too."""


@dataclass
class Answer:
    """What one sequence produced."""

    tokens: list[int] = field(default_factory=list)
    finished: Finished | None = None
    admitted: Admitted | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    pooled: list[PooledOutput] = field(default_factory=list)


class Harness:
    """A core, and what came out of it by sequence."""

    def __init__(self, core: EngineCore, info: ModelInfo) -> None:
        self.core = core
        self.info = info
        self.answers: dict[int, Answer] = {}
        self._next = 0

    def submit(self, prompt: Sequence[int], n: int = 1, **fields: Any) -> list[int]:
        """Queue a request; fields of ``Submit`` or of ``SamplingParams``."""
        keys = ("salt", "priority", "tenant", "retention", "weight", "deadline", "is_held")
        outer = {k: fields.pop(k) for k in keys if k in fields}
        fields.setdefault("temperature", 0.0)
        ids = list(range(self._next, self._next + n))
        self._next += n
        self.answers.update({i: Answer() for i in ids})
        params = SamplingParams(**fields)
        self.core.submit(Submit(ids, np.array(prompt, np.int32).tobytes(), params, **outer))
        return ids

    def bound(self, *quotas: TenantQuota) -> None:
        """Bound tenants; those that fail by it have ended."""
        for finished in self.core.set_quotas(list(quotas)):
            self.answers[finished.sequence].finished = finished

    def step(self) -> StepOutput:
        """One step, its output sorted to the sequences."""
        output = self.core.step()
        if not output.stats.step_tokens:
            # As the engine's own loop does: threads that read pages get their turn.
            time.sleep(0.001)
        tokens = np.frombuffer(output.tokens, np.int32).tolist()
        sequences = np.frombuffer(output.sequences, np.int64).tolist()
        for sequence, token in zip(sequences, tokens, strict=True):
            answer = self.answers[sequence]
            assert answer.finished is None
            answer.tokens.append(token)
        for admitted in output.admitted:
            assert self.answers[admitted.sequence].admitted is None
            self.answers[admitted.sequence].admitted = admitted
        for finished in output.finished:
            assert self.answers[finished.sequence].finished is None
            self.answers[finished.sequence].finished = finished
        for report in output.logprobs:
            self.answers[report.sequence].logprobs.append(report)
        for report in output.prompt_logprobs:
            self.answers[report.sequence].prompt_logprobs.append(report)
        for pooled in output.pooled:
            assert not self.answers[pooled.sequence].tokens[:-1]
            self.answers[pooled.sequence].pooled.append(pooled)
        return output

    def run(self, max_steps: int = 100_000) -> dict[int, Answer]:
        """Step until nothing is left to do."""
        for _ in range(max_steps):
            if not self.core.has_work:
                return self.answers
            self.step()
        raise AssertionError(f"still busy after {max_steps} steps: {self.core.stats}")

    def generate(self, prompt: Sequence[int], **fields: Any) -> list[int]:
        """Tokens of one request, alone."""
        (sequence,) = self.submit(prompt, **fields)
        return self.run()[sequence].tokens


MakeEngine = Callable[..., Harness]


@pytest.fixture(scope="session", autouse=True)
def _read_weights_once() -> Iterator[None]:
    """Engines of one checkpoint share its decoder, which keeps nothing between calls."""
    made: dict[tuple[Path, torch.dtype, type], Decoder] = {}

    def once(checkpoint: Checkpoint, dtype: torch.dtype, *rest: Any) -> Decoder:
        _, _, parts, quantizer, kv_scales = rest
        if quantizer is not None or kv_scales or isinstance(parts, PluginMatmulParts):
            return read(checkpoint, dtype, *rest)
        key = checkpoint.folder, dtype, type(parts)
        if key not in made:
            made[key] = read(checkpoint, dtype, *rest)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gatewayd_engine.core.build.read", once)
        yield


default_model: Callable[[], Path] = embedded.folder
"""What ``build`` computes if nothing else is said."""


@pytest.fixture
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines compute less, for tests to which it does not matter what a model says."""
    monkeypatch.setattr("tests.engine.core.conftest.default_model", small)


def build(model: Path | None = None, catalog: Catalog = CATALOG, **fields: Any) -> Harness:
    """An engine on a checkpoint; fields of ``EngineConfig`` override the defaults."""
    config = EngineConfig(
        **{
            "model": str(model or default_model()),
            "scheduler": StrategyChoice("fcfs"),
            "prefix_cache": StrategyChoice("hash"),
            "eviction": StrategyChoice("lru"),
            "preemption": StrategyChoice("recompute"),
            "logits_processors": [
                StrategyChoice(name) for name in ("penalties", "bias", "min_tokens")
            ],
            "kv_pages": 512,
            "seed": 7,
            "threads": 1,
            **fields,
        }
    )
    engine = assemble(config, PluginHost(catalog), lambda stage, fraction: None)
    return Harness(engine.core, engine.info)


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    """See ``build``; closed, and its pages counted, when the test is over."""
    opened: list[Harness] = []

    def make(model: Path | None = None, **fields: Any) -> Harness:
        opened.append(build(model, **fields))
        return opened[-1]

    yield make
    for harness in opened:
        harness.core.check()
        harness.core.strategies.close()


@pytest.fixture(autouse=True)
def _in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps complete when they are launched, unless a test says otherwise."""
    monkeypatch.setattr(Runner, "overlaps", False)


@pytest.fixture
def overlapping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are launched before the one before has landed, as on a device."""
    monkeypatch.setattr(Runner, "overlaps", True)


@pytest.fixture(params=[False, True], ids=["in-turn", "overlapping"])
def depth(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Steps one after the other, as on a CPU, and overlapping, as on a device."""
    monkeypatch.setattr(Runner, "overlaps", request.param)
    return bool(request.param)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take its time to read a page."""
    monkeypatch.setattr(tier_lookup, "_MOST_WAIT", 60.0)


@pytest.fixture
def folder(checkpoint: Callable[[str], Path]) -> Path:
    """The checkpoint of tests that look at pages."""
    return checkpoint("llama")


@pytest.fixture(params=[1 << 20, 0], ids=["inline", "thread"])
def inline_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Copies made at once, or layer by layer in a thread."""
    monkeypatch.setattr(host_transfers, "_INLINE_BYTES", request.param)
    return int(request.param)


@pytest.fixture(scope="session")
def oracle() -> Callable[[Path], Any]:
    """A checkpoint in transformers, float32; greedy continuation of one prompt at a time."""
    import transformers

    @functools.cache
    def load(folder: Path) -> Any:
        auto: Any = transformers.AutoModelForCausalLM
        return auto.from_pretrained(folder, dtype=torch.float32).eval()

    return load


def mixed_prompts(count: int, vocab_size: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Prompts of mixed length, some of which begin like others."""
    rng = random.Random(seed)
    prompts: list[list[int]] = []
    for _ in range(count):
        length = max(1, int(longest * rng.random() ** 2))
        shared: list[int] = []
        if prompts and rng.random() < 0.5:
            other = rng.choice(prompts)
            shared = other[: rng.randrange(len(other) + 1)]
        rest = [rng.randrange(2, vocab_size) for _ in range(length)]
        prompts.append((shared + rest)[:longest])
    return prompts


@pytest.fixture
def prompts() -> Callable[..., list[list[int]]]:
    """See ``mixed_prompts``."""
    return mixed_prompts


@pytest.fixture
def undisturbed() -> list[list[int]]:
    """What the eight prompts answer when nothing goes wrong."""
    return calm_answers(default_model())


@functools.cache
def calm_answers(model: Path) -> list[list[int]]:
    """See ``undisturbed``."""
    engine = build(model)
    found = answers(engine)
    engine.core.strategies.close()
    return found
