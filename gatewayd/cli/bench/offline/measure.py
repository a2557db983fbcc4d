"""Measurement of offline workloads on one engine, each after a warm-up round."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gatewayd.cli.bench.h200 import Comparison, compare, reference
from gatewayd.cli.bench.offline.engine import BenchEngine, EngineError, EngineRound, running
from gatewayd.cli.bench.offline.workloads import WORKLOADS, Workload
from gatewayd.cli.bench.tables import TableRows, number
from gatewayd.config.tables import Config
from gatewayd_engine.process.messages import ModelInfo

WARMUP_OFFSET = 1_000_000
"""Added to the seed for the warm-up round, so that its prompts differ and fill no prefix cache."""

Watcher = Callable[[str, int, int], None]
"""Called with the workload, the number of tokens generated so far, and their total."""


@dataclass(frozen=True, slots=True)
class OfflineOutcome:
    """Measurements of one workload.

    Attributes:
        workload: name of the workload.
        requests: number of requests, submitted at once.
        input_tokens, output_tokens: of all requests.
        cached_tokens: input tokens found in the prefix cache.
        seconds: from the first submission to the last token.
        steps: number of engine steps.
        step_ms: mean duration of a step.
        step_tokens: mean tokens per step.
        step_sequences: mean batch size of a step.
        preemptions: number of preempted sequences.
        cpu_us: CPU time of the engine process per sequence and step, microseconds; None if it
            cannot be read.
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
        """Return the figures by the keys of ``h200.FIGURES``."""
        return {
            "seconds": self.seconds,
            "output_tokens_per_second": self.output_tokens / self.seconds,
            "input_tokens_per_second": self.input_tokens / self.seconds,
            "requests_per_second": self.requests / self.seconds,
        }

    def comparisons(self) -> list[Comparison]:
        """Compare the figures that have a goal."""
        return compare(self.workload, reference().offline[self.workload], self.figures())

    def as_document(self) -> dict[str, Any]:
        """Convert the measurements to JSON values."""
        return asdict(self) | self.figures()


def prepared(name: str, scale: float, model: ModelInfo, offset: int = 0) -> Workload:
    """Make a workload, scaled and fitted to a model's vocabulary and context."""
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
    """Run workloads in order, and yield the outcome of each.

    Raises:
        EngineError: the engine failed, or a request has a wrong number of tokens.
    """
    for name in names:
        # The warm-up runs in full, so that every kernel, batch size and page was used before.
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
    """Summarize a round.

    Raises:
        EngineError: a request has a wrong number of tokens.
    """
    for index, (got, wanted) in enumerate(zip(round_.tokens, workload.output_lens, strict=True)):
        # All requests ignore EOS, so another length is a fault of the engine.
        if got != wanted:
            raise EngineError(f"request {index} of {workload.name} got {got} tokens of {wanted}")
    steps = len(round_.steps)
    sequences = sum(step.sequences for step in round_.steps)
    each = max(1, steps)
    cpu = round_.cpu_seconds
    return OfflineOutcome(
        workload=workload.name,
        requests=len(workload.own),
        input_tokens=sum(len(prompt) for prompt in workload.prompts),
        output_tokens=sum(round_.tokens),
        # The engine's totals include the warm-up and earlier workloads.
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
    """Measure the seconds to start an engine; a warm start if one was started before.

    Raises:
        EngineError: it cannot be started.
    """
    began = time.perf_counter()
    async with running(config, watch):
        return time.perf_counter() - began


def engine_rows(outcomes: Sequence[OfflineOutcome]) -> TableRows:
    """Format engine statistics of each workload as rows."""
    header = ["workload", "requests", "tokens in", "cached", "out", "s", "output tok/s"]
    header += ["input tok/s", "requests/s", "steps", "ms/step", "tokens/step", "batch"]
    header += ["preempted", "CPU us"]
    rows = []
    for one in outcomes:
        figures = one.figures()
        rows.append(
            [
                one.workload,
                f"{one.requests:,}",
                f"{one.input_tokens:,}",
                f"{one.cached_tokens:,}",
                f"{one.output_tokens:,}",
                number(one.seconds),
                number(figures["output_tokens_per_second"]),
                number(figures["input_tokens_per_second"]),
                number(figures["requests_per_second"]),
                f"{one.steps:,}",
                number(one.step_ms),
                number(one.step_tokens),
                number(one.step_sequences),
                f"{one.preemptions:,}",
                "-" if one.cpu_us is None else number(one.cpu_us),
            ]
        )
    return TableRows(header, rows)
