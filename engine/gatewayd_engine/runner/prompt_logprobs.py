"""Log-probabilities of prompt tokens: the spans that a step reports, and the report."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.sampling.logprobs import report
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import StepResult

_MOST = 256
"""Tokens whose logits are in memory at once: those of 128,256 entries are 128 MiB in float32."""


class PromptSpan(NamedTuple):
    """Prompt tokens whose log-probabilities a step reports.

    Attributes:
        line: index of the sequence in the batch.
        row: batch row of the sequence.
        at: index in the step of the token before the first of them.
        end: position up to which the prompt has been reported after this step.
        tokens: int32, shape ``[n]``.
        num_top: alternatives to report for each.
    """

    line: int
    row: int
    at: int
    end: int
    tokens: NDArray[np.int32]
    num_top: int


def prompt_spans(batch: StepBatch, rows: RunningBatch) -> list[PromptSpan]:
    """Return the prompt tokens to report: those that follow tokens of this step."""
    spans = []
    for line in np.flatnonzero(rows.prompt_logprobs[batch.rows] >= 0).tolist():
        row, start, count = int(batch.rows[line]), int(batch.starts[line]), int(batch.counts[line])
        # After a preemption the prompt is recomputed but not reported again.
        first = max(start, int(rows.reported[row]))
        # The token after the last prompt token is generated, and reported as such.
        last = min(start + count, int(rows.prompt_len[row]) - 1)
        # From positions in the sequence to indices among the step's tokens.
        at = int(batch.last[line]) - count + 1 - start
        for begin in range(first, last, _MOST):
            end = min(begin + _MOST, last)
            # A copy: a runner may read it when the row belongs to another sequence already.
            tokens = rows.tokens[row, begin + 1 : end + 1].copy()
            num_top = int(rows.prompt_logprobs[row])
            spans.append(PromptSpan(line, row, at + begin, end, tokens, num_top))
    return spans


def report_prompts(
    batch: StepBatch,
    rows: RunningBatch,
    logits_of: Callable[[slice], torch.Tensor],
    result: StepResult,
) -> None:
    """Compute log-probabilities of prompt tokens and add them to the result of the step.

    Args:
        batch: batch of the step.
        rows: batch rows, with what each request asks for.
        logits_of: computes the logits of a range of the step's tokens, float32.
        result: receives the log-probabilities.
    """
    for span in prompt_spans(batch, rows):
        count = len(span.tokens)
        logits = logits_of(slice(span.at, span.at + count))
        result.reported.append((span.row, span.end))
        result.prompt_logprobs += report(
            torch.log_softmax(logits, -1),
            [span.line] * count,
            span.tokens.tolist(),
            [span.num_top] * count,
        )
