"""Runs one batch: forward, logits, sampling. Knows rows, not the queue."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.base import Attend
from gatewayd_engine.batch import StepBatch
from gatewayd_engine.flight import Done, Launched
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.pace import Pace
from gatewayd_engine.processing import Processors
from gatewayd_engine.result import NOT_FINITE, StepResult, Tokens
from gatewayd_engine.rows import Rows
from gatewayd_engine.sampling.choice import Choice
from gatewayd_engine.sampling.logprobs import report
from gatewayd_engine.verification import Verification


class AttentionBackend(Attend, Protocol):
    """Attention that is told about each step before its layers are called."""

    def plan(self, batch: StepBatch) -> None:
        """Prepare for the layers of one step."""

    def keep(self, batch: StepBatch, tokens: Tokens) -> None:
        """Of drafts of a tree, those that were kept are not in their places: move them."""

    def blank(self, batch: StepBatch, line: int, first: int, end: int) -> None:
        """Zero what the pool keeps of these places of a line."""

    def forget(self) -> None:
        """The last step may have written what is not finite: keep nothing beside the pool."""


class Runner:
    """The model with its attention and its sampler.

    Attributes:
        overlaps: whether a step may be launched before the one before it has landed.
    """

    overlaps = False

    def __init__(
        self,
        decoder: Decoder,
        attention: AttentionBackend,
        rows: Rows,
        processors: Processors,
        pace: Pace,
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._rows = rows
        self._processors = processors
        self._pace = pace
        self._choice = Choice(rows)
        # The last token of each row, for steps that are launched before it is told.
        self._sampled = np.zeros(len(rows.seed), np.int32)

    def launch(self, batch: StepBatch) -> Launched:
        """Begin to compute a batch; after an exception the same may be launched again."""
        return Done(self.run(batch))

    @torch.inference_mode()
    def run(self, batch: StepBatch) -> StepResult:
        """Compute a batch. After an exception the same batch may be run again."""
        if batch.unknown is not None:
            batch.ids[batch.last[batch.unknown]] = self._sampled[batch.rows[batch.unknown]]
        try:
            result = self._run(batch)
        except BaseException:
            self._attention.forget()
            lengths = (batch.starts + batch.settled).tolist()
            self._processors.rewind(
                self._rows, dict(zip(batch.rows.tolist(), lengths, strict=True))
            )
            raise
        self._processors.settle()
        tokens = result.tokens
        rows, last = batch.rows[tokens.lines], tokens.last
        self._sampled[rows] = last
        lost = self._processors.append(rows, last)
        result.lost = {int(tokens.lines[i]): sentence for i, sentence in lost.items()}
        if result.failed:
            self._attention.forget()
        return result

    def _run(self, batch: StepBatch) -> StepResult:
        self._pace.begin(len(batch.ids))
        self._attention.plan(batch)
        hidden = self._decoder.hidden(
            torch.from_numpy(batch.ids), torch.from_numpy(batch.positions), self._attention
        )
        result = StepResult(hidden=hidden)
        lines = np.flatnonzero(batch.samples)
        if len(lines) < len(batch):
            self._check_chunks(batch, hidden, result)
        if (self._rows.prompt_logprobs[batch.rows] >= 0).any():
            self._report_prompts(batch, hidden, result)
        if len(lines) and batch.drafts is not None:
            self._verify(batch, lines, hidden, result)
        elif len(lines):
            if len(lines) < len(hidden):
                hidden = hidden[torch.from_numpy(batch.last[lines])]
            self._sample(batch, lines, hidden, result)
        self._pace.end()
        return result

    def _check_chunks(self, batch: StepBatch, hidden: torch.Tensor, result: StepResult) -> None:
        """Fail prompts that have gone wrong before their pages are shared with others.

        The last token of a chunk attends to all before it, so a NaN anywhere shows in it.
        """
        lines = np.flatnonzero(~batch.samples)
        sums = hidden[torch.from_numpy(batch.last[lines])].sum(-1)
        for i in np.flatnonzero(~torch.isfinite(sums).numpy()).tolist():
            result.failed.append((int(lines[i]), *NOT_FINITE))

    def _sample(
        self, batch: StepBatch, lines: NDArray[np.int64], hidden: torch.Tensor, result: StepResult
    ) -> None:
        """Choose the next token of each line that is ready for one."""
        columns = self._rows
        logits = self._decoder.logits(hidden)
        row = batch.rows[lines]
        asking = np.flatnonzero(columns.logprobs[row] >= 0)
        raw = torch.log_softmax(logits[torch.from_numpy(asking)], -1) if len(asking) else None
        bad: dict[int, tuple[str, str]] = {}
        if self._processors.wanted_by(row).any():
            raised = self._processors.apply(logits, row, lambda: self._decoder.logits(hidden))
            bad = {i: ("strategy_error", sentence) for i, sentence in raised.items()}
        positions = (batch.starts + batch.counts)[lines]
        is_bad = np.isin(np.arange(len(lines)), list(bad)) if bad else None
        tokens, best = self._choice.tokens(logits, row, positions, is_bad)
        if not math.isfinite(best.sum().item()):
            for i in np.flatnonzero(~torch.isfinite(best).numpy()).tolist():
                bad.setdefault(i, NOT_FINITE)
        ids = tokens.numpy().astype(np.int32)
        if raw is not None:
            result.logprobs = report(
                raw, lines[asking].tolist(), ids[asking].tolist(), columns.logprobs[row[asking]]
            )
        result.tokens = Tokens.single(lines, ids)
        self._leave_out(lines, bad, result)

    def _verify(
        self, batch: StepBatch, lines: NDArray[np.int64], hidden: torch.Tensor, result: StepResult
    ) -> None:
        """Choose the next tokens of each line that is ready for some, by its drafts."""
        if batch.drafts is None:
            return
        drafts = batch.drafts.at(lines)
        counts = drafts.counts + 1
        ends = np.cumsum(counts)
        first = ends - counts
        offset = np.arange(int(ends[-1])) - np.repeat(first, counts)
        wanted = np.repeat(batch.last[lines] - drafts.counts, counts) + offset
        if len(wanted) < len(hidden):
            hidden = hidden[torch.from_numpy(wanted)]
        logits = self._decoder.logits(hidden)
        row = batch.rows[lines]
        starts = batch.starts[lines] + batch.settled[lines] - 1
        verification = Verification(
            lines, row, starts, first, drafts, logits, self._rows, self._processors, self._choice
        )
        result.tokens = tokens = verification.run()
        self._report_tokens(
            tokens, first[np.searchsorted(lines, tokens.lines)], batch, logits, result
        )
        self._leave_out(lines, verification.failed, result)
        result.said = lines, verification.by_line()
        if drafts.parents is not None:
            self._attention.keep(batch, result.tokens)
        spoilt = lines[verification.spoilt].tolist()
        if spoilt:
            parts = [result, *(self._run_plain(batch, line) for line in spoilt)]
            merged = StepResult.merge(parts)
            result.tokens, result.failed = merged.tokens, merged.failed
            result.logprobs, result.hidden = merged.logprobs, None

    def _run_plain(self, batch: StepBatch, line: int) -> StepResult:
        """One line anew, without its drafts: what they left behind may be no numbers.

        Others than a draft's own children may have seen it, masked; a masked NaN is still one.
        """
        end = int(batch.starts[line] + batch.counts[line])
        first = int(batch.starts[line] + batch.settled[line])
        self._attention.blank(batch, line, first, end)
        self._attention.forget()
        return self._run(batch.only(line).without_drafts()).shifted(line)

    def _report_tokens(
        self,
        tokens: Tokens,
        first: NDArray[np.int64],
        batch: StepBatch,
        logits: torch.Tensor,
        result: StepResult,
    ) -> None:
        """Log-probabilities of tokens by the logits they were chosen from.

        Args:
            tokens: of the step.
            first: which logits follow the last token of each of its lines that is no draft.
            batch: the step.
            logits: of all tokens that are verified.
            result: gets them.
        """
        asked = self._rows.logprobs[batch.rows[tokens.lines]]
        chosen = [
            (int(tokens.lines[i]), first[i] + tokens.nodes[i, j], int(tokens.ids[i, j]), asked[i])
            for i in np.flatnonzero(asked >= 0)
            for j in range(int(tokens.counts[i]))
        ]
        if chosen:
            of, index, ids, num_top = zip(*chosen, strict=True)
            raw = torch.log_softmax(logits[torch.tensor(index)], -1)
            result.logprobs = report(raw, of, ids, num_top)

    @staticmethod
    def _leave_out(
        lines: NDArray[np.int64], bad: dict[int, tuple[str, str]], result: StepResult
    ) -> None:
        """Lines that failed get no tokens."""
        if bad:
            result.failed += [(int(lines[i]), *bad[i]) for i in sorted(bad)]
            result.tokens = result.tokens.without({int(lines[i]) for i in bad})

    def _report_prompts(self, batch: StepBatch, hidden: torch.Tensor, result: StepResult) -> None:
        """Log-probabilities of the prompt tokens that follow those of this step."""
        for line in np.flatnonzero(self._rows.prompt_logprobs[batch.rows] >= 0).tolist():
            row, start = int(batch.rows[line]), int(batch.starts[line])
            # After a preemption the prompt is computed again but not told again.
            first = max(start, int(self._rows.reported[row]))
            end = min(start + int(batch.counts[line]), int(self._rows.prompt_len[row]) - 1)
            count = end - first
            if count < 1:
                continue
            at = int(batch.last[line] - batch.counts[line]) + 1 + first - start
            logits = self._decoder.logits(hidden[at : at + count])
            result.reported.append((row, end))
            result.prompt_logprobs += report(
                torch.log_softmax(logits, -1),
                [line] * count,
                self._rows.tokens[row, first + 1 : end + 1].tolist(),
                [int(self._rows.prompt_logprobs[row])] * count,
            )
