"""In-process engine for benchmarks that count steps and tokens.

Import this before torch: it settles the threads as the engine's own process does.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gatewayd_engine.model.embedded import folder
from gatewayd_engine.process.config import EngineConfig, StrategyChoice
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.messages import SamplingParams, Submit
from gatewayd_engine.process.threads import configure_threads
from gatewayd_hooks.strategy import Kind

configure_threads(None)


from gatewayd_engine.core.build import assemble  # noqa: E402 - imports torch
from gatewayd_engine.core.engine_core import EngineCore  # noqa: E402 - imports torch
from gatewayd_hooks.host.catalog import Catalog  # noqa: E402 - beside the line below
from gatewayd_hooks.host.loading import PluginHost  # noqa: E402 - beside the line above


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt and how many tokens follow it."""

    prompt: Sequence[int]
    output_tokens: int


@dataclass(slots=True)
class Outcome:
    """What running jobs to their end gave.

    Attributes:
        seconds: from the first submission to the last token.
        tokens: generated ids of each job, in the order of the jobs.
        stats: after the last step.
    """

    seconds: float
    tokens: list[list[int]]
    stats: EngineStats


class HostWith(PluginHost):
    """The installed strategies, and some that a comparison brings along."""

    def __init__(self, extra: Mapping[tuple[Kind, str], Callable[[], Any]]) -> None:
        super().__init__(Catalog.installed())
        self._extra = dict(extra)

    def strategy(self, kind: Kind, name: str, settings: Mapping[str, Any]) -> Any:
        """Make a strategy; the ones brought along come first."""
        make = self._extra.get((kind, name))
        return make() if make else super().strategy(kind, name, settings)


def make_core(
    *,
    extra: Mapping[tuple[Kind, str], Callable[[], Any]] | None = None,
    scheduler: str = "fcfs",
    prefix_cache: str | None = "hash",
    processors: Sequence[str] = (),
    drafter: StrategyChoice | None = None,
    spec_controller: StrategyChoice | None = None,
    page_size: int = 16,
    max_running: int = 64,
    max_batch_tokens: int = 2048,
    **fields: Any,
) -> EngineCore:
    """An engine on the embedded model; ``fields`` are others of ``EngineConfig``."""
    config = EngineConfig(
        model=str(folder()),
        scheduler=StrategyChoice(scheduler),
        prefix_cache=StrategyChoice(prefix_cache) if prefix_cache else None,
        eviction=StrategyChoice("lru"),
        preemption=fields.pop("preemption", StrategyChoice("recompute")),
        logits_processors=[StrategyChoice(name) for name in processors],
        drafter=drafter,
        spec_controller=spec_controller or StrategyChoice("adaptive"),
        page_size=page_size,
        max_running=max_running,
        max_batch_tokens=max_batch_tokens,
        seed=1,
        **fields,
    )
    return assemble(config, HostWith(extra or {}), lambda stage, fraction: None).core


@dataclass(slots=True)
class Drive:
    """Submits jobs to a core and collects what they generate."""

    core: EngineCore
    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    next_id: int = 1

    def submit(self, job: Job) -> int:
        """Queue a job, greedy, end token ignored; gives its sequence's number."""
        sequence, self.next_id = self.next_id, self.next_id + 1
        params = SamplingParams(max_tokens=job.output_tokens, temperature=0.0, ignore_eos=True)
        prompt = np.array(job.prompt, np.int32).tobytes()
        self.core.submit(Submit([sequence], prompt, params))
        return sequence

    def step(self) -> None:
        """One step.

        Raises:
            RuntimeError: a request failed.
        """
        output = self.core.step()
        sequences = np.frombuffer(output.sequences, np.int64)
        tokens = np.frombuffer(output.tokens, np.int32)
        for sequence, token in zip(sequences.tolist(), tokens.tolist(), strict=True):
            self.tokens[sequence].append(token)
        for end in output.finished:
            if end.error:
                raise RuntimeError(f"sequence {end.sequence}: {end.error}")

    def finish(self) -> None:
        """Step until nothing is left."""
        while self.core.has_work:
            self.step()

    def run(self, jobs: Sequence[Job]) -> Outcome:
        """Submit all jobs at once and run them to their end."""
        begin = time.perf_counter()
        sequences = [self.submit(job) for job in jobs]
        self.finish()
        seconds = time.perf_counter() - begin
        return Outcome(seconds, [self.tokens.pop(s) for s in sequences], self.core.stats)
