"""What came of the drafts of a step, from the logits of all that was computed behind them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.process.plugin_faults import Fault
from gatewayd_engine.sampling.draft_verification import Verification
from gatewayd_engine.sampling.logprobs import report
from gatewayd_engine.sampling.processors import Processors
from gatewayd_engine.sampling.token_picker import TokenPicker
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import DraftLines, StepBatch
from gatewayd_engine.state.step_result import StepResult, Tokens


def wanted_of(batch: StepBatch, drafts: DraftLines, lines: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which tokens' logits are wanted: of each line the last that is no draft, and its drafts."""
    counts = drafts.counts[lines] + 1
    first = np.cumsum(counts) - counts
    offset = np.arange(int(counts.sum())) - np.repeat(first, counts)
    wanted: NDArray[np.int64] = np.repeat(batch.last[lines] + 1 - counts, counts) + offset
    return wanted


def verify(
    batch: StepBatch,
    drafts: DraftLines,
    lines: NDArray[np.int64],
    logits: torch.Tensor,
    rows: RunningBatch,
    processors: Processors,
    choice: TokenPicker,
    result: StepResult,
    reported: torch.Tensor | None = None,
) -> list[int]:
    """Choose the next tokens of each line that is ready for some, by its drafts.

    Args:
        batch: the step.
        drafts: of the batch.
        lines: those that get tokens, shape ``[n]``.
        logits: of ``wanted_of`` them, float32.
        rows: columns of the batch.
        processors: of the rows.
        choice: how tokens are chosen from logits.
        result: gets them.
        reported: logits whose log-probabilities are told; None for the same.

    Returns:
        Lines that get none: a draft may have spoilt their numbers, and they are to be computed
        without.
    """
    own = drafts.at(lines)
    first = np.cumsum(own.counts + 1) - own.counts - 1
    starts = batch.starts[lines] + batch.settled[lines] - 1
    verification = Verification(
        lines, batch.rows[lines], starts, first, own, logits, rows, processors, choice
    )
    result.tokens = tokens = verification.run()
    raw = logits if reported is None else reported
    _report(tokens, first[np.searchsorted(lines, tokens.lines)], batch, raw, rows, result)
    leave_out(lines, verification.failed, result)
    result.said = lines, verification.by_line()
    spoilt: list[int] = lines[verification.spoilt].tolist()
    return spoilt


def leave_out(lines: NDArray[np.int64], bad: dict[int, Fault], result: StepResult) -> None:
    """Lines that failed get no tokens."""
    if bad:
        result.failed += [(int(lines[i]), *bad[i]) for i in sorted(bad)]
        result.tokens = result.tokens.without({int(lines[i]) for i in bad})


def _report(
    tokens: Tokens,
    first: NDArray[np.int64],
    batch: StepBatch,
    logits: torch.Tensor,
    rows: RunningBatch,
    result: StepResult,
) -> None:
    """Log-probabilities of tokens by the logits they were chosen from.

    Args:
        tokens: of the step.
        first: which logits follow the last token of each of its lines that is no draft.
        batch: the step.
        logits: of all tokens that are verified.
        rows: say who asked.
        result: gets them.
    """
    asked = rows.logprobs[batch.rows[tokens.lines]]
    chosen = [
        (int(tokens.lines[i]), first[i] + tokens.nodes[i, j], int(tokens.ids[i, j]), asked[i])
        for i in np.flatnonzero(asked >= 0)
        for j in range(int(tokens.counts[i]))
    ]
    if chosen:
        of, index, ids, num_top = zip(*chosen, strict=True)
        chosen_from = logits[torch.tensor(index, device=logits.device)].float().cpu()
        raw = torch.log_softmax(chosen_from, -1)
        result.logprobs = report(raw, of, ids, num_top)
