"""What a step is asked for beside tokens, and its result once its numbers have come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kernels.transfers import PendingHostCopy
from gatewayd_engine.process.plugin_faults import Fault
from gatewayd_engine.runner.pooling import PoolSpan, pool_spans, tell
from gatewayd_engine.runner.prompt_logprobs import PromptSpan, prompt_spans
from gatewayd_engine.sampling.logprobs import LogprobColumns, describe
from gatewayd_engine.sampling.processors import Processors
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import NOT_FINITE, StepResult, Tokens


@dataclass(frozen=True, slots=True)
class StepRequests:
    """What the requests of a step want beside their next tokens.

    Attributes:
        is_processed: whether any line has logits processors.
        reporting: which of the lines with a token want log-probabilities, shape ``[n]``.
        num_top: alternatives that each of those wants, shape ``[n]``.
        prompts: what is to be told of prompts.
        pools: whose hidden states are.
    """

    is_processed: bool
    reporting: NDArray[np.int64]
    num_top: NDArray[np.int32]
    prompts: list[PromptSpan]
    pools: list[PoolSpan]

    @classmethod
    def by(
        cls, batch: StepBatch, lines: NDArray[np.int64], rows: RunningBatch, processors: Processors
    ) -> StepRequests:
        """What those of a batch want, of which ``lines`` get a token."""
        row = batch.rows[lines]
        wanted = rows.logprobs[row]
        reporting = np.flatnonzero(wanted >= 0)
        prompts = prompt_spans(batch, rows)
        is_processed = bool(processors.wanted_by(row).any())
        pools = pool_spans(batch, rows)
        return cls(is_processed, reporting, wanted[reporting], prompts, pools)

    @property
    def needs_hidden(self) -> bool:
        """Whether something is wanted of tokens that are not chosen in this step."""
        return bool(self.prompts or self.pools)

    @property
    def is_nothing(self) -> bool:
        """Whether tokens are all."""
        return not (self.is_processed or len(self.reporting) or self.needs_hidden)

    @property
    def most_top(self) -> int:
        """The most alternatives that anybody wants of a token."""
        return int(self.num_top.max(initial=0))


@dataclass(slots=True)
class StepOutcome:
    """A step that a device computes; see ``Launched``.

    Attributes:
        batch: the step.
        lines: of those that get a token, shape ``[n]``.
        pending: tokens and the bits of the largest logits, int32 ``[2, n]``; then, where
            there are prompts that go on, a sum of each line's last hidden state, ``[lines]``; then
            the figures of log-probabilities of tokens, and of each prompt; then sums of hidden
            states.
        asked: what was asked for.
        has_sums: whether the sums are there.
        failed: faults by index of ``lines`` on which a processor raised.
        lost: the same where one lost count.
    """

    batch: StepBatch
    lines: NDArray[np.int64]
    pending: PendingHostCopy
    asked: StepRequests
    has_sums: bool = False
    failed: dict[int, Fault] = field(default_factory=dict)
    lost: dict[int, Fault] = field(default_factory=dict)

    def result(self) -> StepResult:
        """Wait for the numbers, and say what they mean."""
        (chosen, *rest), lines = self.pending.read(), self.lines
        ids, best = chosen[0], chosen[1].view(np.float32)
        bad = dict(self.failed)
        for i in np.flatnonzero(~np.isfinite(best)).tolist():
            bad.setdefault(i, NOT_FINITE)
        result = StepResult(tokens=Tokens.single(lines, ids))
        if self.has_sums:
            sums, *rest = rest
            going_on = np.flatnonzero(~self.batch.samples & ~np.isfinite(sums))
            result.failed = [(line, *NOT_FINITE) for line in going_on.tolist()]
        result.failed += [(int(lines[i]), *bad[i]) for i in sorted(bad)]
        result.lost = {int(lines[i]): s for i, s in self.lost.items() if i not in bad}
        asked = self.asked
        if len(asked.reporting):
            figures, rest = LogprobColumns(*rest[:4]), rest[4:]
            told = lines[asked.reporting].tolist()
            result.logprobs = describe(told, ids[asked.reporting].tolist(), asked.num_top, figures)
        tell_prompts(asked, rest, result)
        if bad:
            result.tokens = result.tokens.without({int(lines[i]) for i in bad})
        return result


def tell_prompts(asked: StepRequests, rest: Sequence[NDArray[Any]], result: StepResult) -> None:
    """Note what is asked for of prompts.

    Args:
        asked: what that is.
        rest: four figures of each prompt's log-probabilities, then the sums of hidden states.
        result: gets them.
    """
    for span in asked.prompts:
        figures, rest = LogprobColumns(*rest[:4]), rest[4:]
        count = len(span.tokens)
        result.reported.append((span.row, span.end))
        result.prompt_logprobs += describe(
            [span.line] * count, span.tokens.tolist(), [span.num_top] * count, figures
        )
    if asked.pools:
        tell(asked.pools, torch.from_numpy(rest[0]), result)
