"""Hidden states of prompts, summed up: what embeddings are made of.

The engine tells sums of the tokens that a step has computed and how many those are; who asked adds
them up. Nothing is kept here between steps.
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
    """Prompt tokens of a step whose hidden states are wanted.

    Attributes:
        line: of the batch.
        row: of the line.
        at, to: which of the step's tokens.
        end: the prompt is told up to here.
    """

    line: int
    row: int
    at: int
    to: int
    end: int


def pool_spans(batch: StepBatch, rows: RunningBatch) -> list[PoolSpan]:
    """What of this step is wanted."""
    spans = []
    for line in np.flatnonzero(rows.pooling[batch.rows]).tolist():
        row, start, count = int(batch.rows[line]), int(batch.starts[line]), int(batch.counts[line])
        prompt_len = int(rows.prompt_len[row])
        # After a preemption the prompt is computed again but not told again.
        first, end = max(start, int(rows.reported[row])), min(start + count, prompt_len)
        if rows.pooling[row] == _LAST:
            first = max(first, prompt_len - 1)
        if first < end:
            shift = int(batch.last[line]) - count + 1 - start
            spans.append(PoolSpan(line, row, first + shift, end + shift, end))
    return spans


def pool(hidden: torch.Tensor, spans: list[PoolSpan]) -> torch.Tensor:
    """Sum up each span, float32 ``[spans, hidden]``, of all tokens of the step."""
    return torch.stack([hidden[one.at : one.to].sum(0, dtype=torch.float32) for one in spans])


def tell(spans: list[PoolSpan], sums: torch.Tensor, result: StepResult) -> None:
    """Note what was summed up, on the CPU."""
    for span, vector in zip(spans, sums.numpy(), strict=True):
        result.reported.append((span.row, span.end))
        result.pooled.append(PooledOutput(span.line, span.to - span.at, vector.tobytes()))
