"""One workload after the other on one engine, each after a round that is not measured."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gatewayd.cli.bench.offline.engine import BenchEngine, EngineError, EngineRound, running
from gatewayd.cli.bench.offline.workloads import WORKLOADS, Workload
from gatewayd.config.tables import Config
from gatewayd_engine.process.messages import ModelInfo

WARMUP_OFFSET = 1_000_000
"""Added to the seed of the round before: its prompts are others, which no prefix cache knows."""

Watcher = Callable[[str, int, int], None]
"""Told the workload, the tokens generated so far, and how many there will be."""


@dataclass(frozen=True, slots=True)
class OfflineOutcome:
    """What one workload took.

    Attributes:
        workload: its name.
        requests: submitted at once.
        input_tokens, output_tokens: of all of them.
        cached_tokens: of the input, found in the prefix cache.
        seconds: from the first submission to the last token.
        steps: that the engine made.
        step_ms: that one took, in the mean.
        step_tokens: that one computed, in the mean.
        step_sequences: that one had in its batch, in the mean.
        preemptions: sequences that had to give up their pages.
        cpu_us: CPU time of the engine's process for one sequence in one step, microseconds;
            None where it cannot be read.
    """

    workload: str
    requests: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    seconds: float
    steps: int
    step_ms: float
    step_tokens: float
    step_sequences: float
    preemptions: int
    cpu_us: float | None

    def figures(self) -> dict[str, float]:
        """By the keys of ``h200.FIGURES``."""
        return {
            "seconds": self.seconds,
            "output_tokens_per_second": self.output_tokens / self.seconds,
            "input_tokens_per_second": self.input_tokens / self.seconds,
            "requests_per_second": self.requests / self.seconds,
        }

    def as_document(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | self.figures()


def prepared(name: str, scale: float, model: ModelInfo, offset: int = 0) -> Workload:
    """A workload as this model can compute it."""
    whole = WORKLOADS[name](offset)
    part = whole if scale == 1 else whole.scaled(scale)
    return part.fitted(model.vocab_size, model.max_model_len)


async def measure(
    engine: BenchEngine,
    model: ModelInfo,
    names: Sequence[str],
    scale: float,
    watch: Watcher = lambda name, done, total: None,
) -> AsyncIterator[OfflineOutcome]:
    """Run workloads in this order.

    Raises:
        EngineError: the engine failed, or a request has not the tokens that it asked for.
    """
    for name in names:
        # In full: every kernel, every batch size and every page is met once before.
        for offset in (WARMUP_OFFSET, 0):
            workload = prepared(name, scale, model, offset)
            label = f"{name}, warm-up" if offset else name
            total, done = sum(workload.output_lens), 0

            def advance(count: int, label: str = label, total: int = total) -> None:
                nonlocal done
                done += count
                watch(label, done, total)

            advance(0)
            round_ = await engine.run(workload.prompts, workload.output_lens, advance)
        yield outcome(workload, round_)


def outcome(workload: Workload, round_: EngineRound) -> OfflineOutcome:
    """Reduce a round to figures.

    Raises:
        EngineError: a request has not the tokens that it asked for.
    """
    for place, (got, wanted) in enumerate(zip(round_.tokens, workload.output_lens, strict=True)):
        if got != wanted:
            raise EngineError(f"request {place} of {workload.name} got {got} tokens of {wanted}")
    steps = len(round_.steps)
    sequences = sum(step.sequences for step in round_.steps)
    each = max(1, steps)
    cpu = round_.cpu_seconds
    return OfflineOutcome(
        workload=workload.name,
        requests=len(workload.own),
        input_tokens=sum(len(prompt) for prompt in workload.prompts),
        output_tokens=sum(round_.tokens),
        cached_tokens=round_.after.prefix_hits - round_.before.prefix_hits,
        seconds=round_.seconds,
        steps=steps,
        step_ms=1000 * sum(step.seconds for step in round_.steps) / each,
        step_tokens=sum(step.tokens for step in round_.steps) / each,
        step_sequences=sequences / each,
        preemptions=round_.after.preemptions - round_.before.preemptions,
        cpu_us=None if cpu is None or not sequences else 1e6 * cpu / sequences,
    )


async def warm_start(config: Config, watch: Callable[[str, float], None]) -> float:
    """Seconds from nothing to an engine that is ready; warm if one was started before.

    Raises:
        EngineError: it cannot be started.
    """
    began = time.perf_counter()
    async with running(config, watch):
        return time.perf_counter() - began
