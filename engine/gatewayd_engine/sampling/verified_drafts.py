"""Verification of a step's drafts on a CPU, and its effect on the step's result."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.process.plugin_faults import Fault
from gatewayd_engine.sampling.draft_verification import DraftVerification
from gatewayd_engine.sampling.logprobs import report
from gatewayd_engine.sampling.processors import Processors
from gatewayd_engine.sampling.token_picker import TokenPicker
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import BatchDrafts, StepBatch
from gatewayd_engine.state.step_result import StepResult, Tokens


def tokens_to_verify(
    batch: StepBatch, drafts: BatchDrafts, lines: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the tokens whose logits are needed: each sequence's last token and its drafts."""
    counts = drafts.counts[lines] + 1
    first = np.cumsum(counts) - counts
    offset = np.arange(int(counts.sum())) - np.repeat(first, counts)
    wanted: NDArray[np.int64] = np.repeat(batch.last[lines] + 1 - counts, counts) + offset
    return wanted


def verify(
    batch: StepBatch,
    drafts: BatchDrafts,
    lines: NDArray[np.int64],
    logits: torch.Tensor,
    rows: RunningBatch,
    processors: Processors,
    choice: TokenPicker,
    result: StepResult,
    reported: torch.Tensor | None = None,
) -> list[int]:
    """Verify drafts, and add the accepted tokens to the result of the step.

    Args:
        batch: batch of the step.
        drafts: drafts of the batch.
        lines: sequences that get tokens, shape ``[n]``.
        logits: logits of ``tokens_to_verify``, float32.
        rows: batch rows.
        processors: logits processors of the rows.
        choice: selects tokens from logits.
        result: receives the tokens.
        reported: logits for the reported log-probabilities; None for ``logits``.

    Returns:
        Sequences that get no tokens because a draft may have caused NaN: they have to be
        recomputed without drafts.
    """
    own = drafts.at(lines)
    # Logits are sequence by sequence: one for its last token, then one for each draft.
    first = np.cumsum(own.counts + 1) - own.counts - 1
    starts = batch.starts[lines] + batch.settled[lines] - 1
    verification = DraftVerification(
        lines, batch.rows[lines], starts, first, own, logits, rows, processors, choice
    )
    result.tokens = tokens = verification.run()
    raw = logits if reported is None else reported
    _report(tokens, first[np.searchsorted(lines, tokens.entries)], batch, raw, rows, result)
    record_failed(lines, verification.failed, result)
    result.model_tokens = lines, verification.by_line()
    spoilt: list[int] = lines[verification.spoilt].tolist()
    return spoilt


def record_failed(lines: NDArray[np.int64], bad: dict[int, Fault], result: StepResult) -> None:
    """Record failed sequences in the result, and remove their tokens."""
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
    """Add the log-probabilities of tokens to the result.

    Args:
        tokens: tokens of the step.
        first: index of the logits of each sequence's last token before its drafts.
        batch: batch of the step.
        logits: logits of all verified tokens.
        rows: batch rows, with what each request asks for.
        result: receives the log-probabilities.
    """
    asked = rows.logprobs[batch.rows[tokens.entries]]
    chosen = [
        (int(tokens.entries[i]), first[i] + tokens.nodes[i, j], int(tokens.ids[i, j]), asked[i])
        for i in np.flatnonzero(asked >= 0)
        for j in range(int(tokens.counts[i]))
    ]
    if chosen:
        of, index, ids, num_top = zip(*chosen, strict=True)
        chosen_from = logits[torch.tensor(index, device=logits.device)].float().cpu()
        raw = torch.log_softmax(chosen_from, -1)
        result.logprobs = report(raw, of, ids, num_top)
