"""Outputs requested of a step in addition to tokens, and its result once copied to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kernels.transfers import PendingHostCopy
from gatewayd_engine.process.plugin_faults import Fault
from gatewayd_engine.runner.pooling import PoolSpan, pool_spans, record_pooled
from gatewayd_engine.runner.prompt_logprobs import PromptSpan, prompt_spans
from gatewayd_engine.sampling.logprobs import LogprobColumns, describe
from gatewayd_engine.sampling.processors import Processors
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import NOT_FINITE, StepResult, Tokens


@dataclass(frozen=True, slots=True)
class StepRequests:
    """Outputs that the requests of a step ask for in addition to their next tokens.

    Attributes:
        is_processed: whether any sequence has logits processors.
        reporting: which of the sequences with a token report log-probabilities, shape ``[n]``.
        num_top: alternatives that each of those reports, shape ``[n]``.
        prompts: prompt tokens whose log-probabilities are reported.
        pools: prompt tokens whose hidden states are pooled.
    """

    is_processed: bool
    reporting: NDArray[np.int64]
    num_top: NDArray[np.int32]
    prompts: list[PromptSpan]
    pools: list[PoolSpan]

    @classmethod
    def from_batch(
        cls, batch: StepBatch, lines: NDArray[np.int64], rows: RunningBatch, processors: Processors
    ) -> StepRequests:
        """Collect the requests of a batch, of which sequences ``lines`` get a token."""
        row = batch.rows[lines]
        wanted = rows.logprobs[row]
        reporting = np.flatnonzero(wanted >= 0)
        prompts = prompt_spans(batch, rows)
        is_processed = bool(processors.wanted_by(row).any())
        pools = pool_spans(batch, rows)
        return cls(is_processed, reporting, wanted[reporting], prompts, pools)

    @property
    def needs_hidden(self) -> bool:
        """Whether hidden states of prompt tokens are needed."""
        return bool(self.prompts or self.pools)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is requested but tokens."""
        return not (self.is_processed or len(self.reporting) or self.needs_hidden)

    @property
    def most_top(self) -> int:
        """The most alternatives that any sequence reports per token."""
        return int(self.num_top.max(initial=0))


@dataclass(slots=True)
class StepOutcome:
    """Result of a step that a device computes; implements ``Launched``.

    Attributes:
        batch: batch of the step.
        lines: sequences that get a token, shape ``[n]``.
        pending: tokens and the bits of the largest logits, int32 ``[2, n]``; then, where there are
            unfinished prompts, a sum over each sequence's last hidden state, ``[sequences]``; then
            log-probabilities of tokens, and of each prompt; then pooled hidden states.
        asked: requested outputs.
        has_sums: whether the sums over last hidden states are included.
        failed: faults by index of ``lines`` for which a processor raised in ``apply``.
        lost: likewise for which one raised in ``append``, after which its state is invalid.
    """

    batch: StepBatch
    lines: NDArray[np.int64]
    pending: PendingHostCopy
    asked: StepRequests
    has_sums: bool = False
    failed: dict[int, Fault] = field(default_factory=dict)
    lost: dict[int, Fault] = field(default_factory=dict)

    def result(self) -> StepResult:
        """Wait for the copy and interpret it."""
        (chosen, *rest), lines = self.pending.read(), self.lines
        # The bits of the logits are in the tensor of the ids, so that both are one copy.
        ids, best = chosen[0], chosen[1].view(np.float32)
        bad = dict(self.failed)
        for i in np.flatnonzero(~np.isfinite(best)).tolist():
            bad.setdefault(i, NOT_FINITE)
        result = StepResult(tokens=Tokens.single(lines, ids))
        if self.has_sums:
            sums, *rest = rest
            # Unfinished prompts: those that sample are judged by their logits.
            going_on = np.flatnonzero(~self.batch.samples & ~np.isfinite(sums))
            result.failed = [(line, *NOT_FINITE) for line in going_on.tolist()]
        result.failed += [(int(lines[i]), *bad[i]) for i in sorted(bad)]
        # Sequences that have failed end anyway.
        result.lost = {int(lines[i]): s for i, s in self.lost.items() if i not in bad}
        asked = self.asked
        if len(asked.reporting):
            figures, rest = LogprobColumns(*rest[:4]), rest[4:]
            of = lines[asked.reporting].tolist()
            result.logprobs = describe(of, ids[asked.reporting].tolist(), asked.num_top, figures)
        record_prompts(asked, rest, result)
        if bad:
            result.tokens = result.tokens.without({int(lines[i]) for i in bad})
        return result


def record_prompts(asked: StepRequests, rest: Sequence[NDArray[Any]], result: StepResult) -> None:
    """Add the outputs requested of prompts to the result.

    Args:
        asked: requested outputs.
        rest: four arrays of each prompt's log-probabilities, then pooled hidden states.
        result: receives them.
    """
    for span in asked.prompts:
        figures, rest = LogprobColumns(*rest[:4]), rest[4:]
        count = len(span.tokens)
        result.reported.append((span.row, span.end))
        result.prompt_logprobs += describe(
            [span.line] * count, span.tokens.tolist(), [span.num_top] * count, figures
        )
    if asked.pools:
        record_pooled(asked.pools, torch.from_numpy(rest[0]), result)
