"""Steps that compute while the next one is planned: a step in flight, and its completion."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.runner.pooling import pool_spans
from gatewayd_engine.runner.prompt_logprobs import prompt_spans
from gatewayd_engine.state.step_result import NOT_FINITE, StepResult, Tokens

if TYPE_CHECKING:
    from gatewayd_engine.model.fused.data import StepOutputs
    from gatewayd_engine.model.fused.step import FusedStep
    from gatewayd_engine.sampling.processors import Processors
    from gatewayd_engine.state.running_batch import RunningBatch
    from gatewayd_engine.state.step_batch import StepBatch


def needs_tokens_alone(batch: StepBatch, rows: RunningBatch, processors: Processors) -> bool:
    """Whether a batch is to yield tokens and nothing else, which no processor may change."""
    if batch.drafts is not None or processors.changes_any(batch.rows[batch.samples]):
        return False
    if not rows.reports[batch.rows].any():
        return True
    return (
        not (rows.logprobs[batch.rows[batch.samples]] >= 0).any()
        and not prompt_spans(batch, rows)
        and not pool_spans(batch, rows)
    )


@contextmanager
def torch_threads(fused: FusedStep | None) -> Iterator[None]:
    """Let torch use a fused step's threads for layers that are not fused, and then one again."""
    if fused is None:
        yield
        return
    torch.set_num_threads(fused.threads)
    try:
        yield
    finally:
        torch.set_num_threads(1)


@dataclass(slots=True, eq=False)
class StepInFlight:
    """A fused step that has been started; implements ``Launched``.

    Attributes:
        step: that computes it.
        batch: of the step.
        lines: sequences that get a token, shape ``[n]``.
        outputs: complete once the step is.
        sampled: the last token of each row, which is updated.
        on_end: called once the step has ended.
    """

    step: FusedStep
    batch: StepBatch
    lines: NDArray[np.int64]
    outputs: StepOutputs
    sampled: NDArray[np.int32]
    on_end: Callable[[], None]
    _result: StepResult | None = field(default=None)

    def result(self) -> StepResult:
        """See ``Launched``; may be called again."""
        if self._result is None:
            self.step.join()
            self._result = self._completed()
            self.on_end()
        return self._result

    def _completed(self) -> StepResult:
        batch, lines, outputs = self.batch, self.lines, self.outputs
        ids = outputs.tokens.numpy().astype(np.int32)
        result = StepResult(Tokens.single(lines, ids), hidden=outputs.hidden)
        if len(lines) < len(batch):
            check_chunks(batch, outputs.hidden, result)
        # By numpy, whose calls on a few numbers cost less than torch's.
        is_finite = np.isfinite(outputs.best.numpy())
        if not is_finite.all():
            bad = np.flatnonzero(~is_finite).tolist()
            result.failed += [(int(lines[i]), *NOT_FINITE) for i in bad]
            result.tokens = result.tokens.without({int(lines[i]) for i in bad})
        self.sampled[batch.rows[result.tokens.entries]] = result.tokens.last
        return result


def check_chunks(batch: StepBatch, hidden: torch.Tensor, result: StepResult) -> None:
    """Fail prompts with NaN before their pages can be shared with other sequences.

    The last token of a chunk attends to all tokens before it, so NaN propagates to it.
    """
    lines = np.flatnonzero(~batch.samples)
    sums = hidden[torch.from_numpy(batch.last[lines])].sum(-1)
    for i in np.flatnonzero(~torch.isfinite(sums).numpy()).tolist():
        result.failed.append((int(lines[i]), *NOT_FINITE))
