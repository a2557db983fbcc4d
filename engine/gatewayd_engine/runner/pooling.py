"""Pooling of prompts' hidden states, for embeddings.

The engine reports the sum over the tokens computed in a step and their number; the client of the
engine accumulates them. No state is kept here between steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from gatewayd_engine.process.messages import POOLINGS, PooledOutput
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import StepResult

_LAST = POOLINGS.index("last") + 1


class PoolSpan(NamedTuple):
    """Prompt tokens of a step whose hidden states are pooled.

    Attributes:
        line: index of the sequence in the batch.
        row: batch row of the sequence.
        at, to: range of tokens in the step.
        end: position up to which the prompt has been reported after this step.
    """

    line: int
    row: int
    at: int
    to: int
    end: int


def pool_spans(batch: StepBatch, rows: RunningBatch) -> list[PoolSpan]:
    """Return the spans of this step to be pooled."""
    spans = []
    for line in np.flatnonzero(rows.pooling[batch.rows]).tolist():
        row, start, count = int(batch.rows[line]), int(batch.starts[line]), int(batch.counts[line])
        prompt_len = int(rows.prompt_len[row])
        # After a preemption the prompt is recomputed but not reported again.
        first, end = max(start, int(rows.reported[row])), min(start + count, prompt_len)
        # Chunks before the last prompt token have nothing to pool.
        if rows.pooling[row] == _LAST:
            first = max(first, prompt_len - 1)
        if first < end:
            # From positions in the sequence to indices among the step's tokens.
            shift = int(batch.last[line]) - count + 1 - start
            spans.append(PoolSpan(line, row, first + shift, end + shift, end))
    return spans


def pool(hidden: torch.Tensor, spans: list[PoolSpan]) -> torch.Tensor:
    """Sum the hidden states of each span of the step's tokens, float32 ``[spans, hidden]``."""
    return torch.stack([hidden[one.at : one.to].sum(0, dtype=torch.float32) for one in spans])


def record_pooled(spans: list[PoolSpan], sums: torch.Tensor, result: StepResult) -> None:
    """Add sums of hidden states, on the CPU, to the result of the step."""
    for span, vector in zip(spans, sums.numpy(), strict=True):
        result.reported.append((span.row, span.end))
        result.pooled.append(PooledOutput(span.line, span.to - span.at, vector.tobytes()))
