"""Runs one batch: forward, logits, sampling. Knows rows, not the queue."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.base import Attend
from gatewayd_engine.batch import StepBatch
from gatewayd_engine.messages import TokenLogprobs
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.pace import Pace
from gatewayd_engine.processing import Processors
from gatewayd_engine.rows import Rows
from gatewayd_engine.sampling.logprobs import report
from gatewayd_engine.sampling.random import uniform
from gatewayd_engine.sampling.sampler import sample

_NOT_FINITE = ("numerical_error", "the model's logits are not finite")


class AttentionBackend(Attend, Protocol):
    """Attention that is told about each step before its layers are called."""

    def plan(self, batch: StepBatch) -> None:
        """Prepare for the layers of one step."""

    def forget(self) -> None:
        """The last step may have written what is not finite: keep nothing beside the pool."""


@dataclass(slots=True)
class StepResult:
    """What a batch produced.

    Attributes:
        lines: which lines of the batch got a token, shape ``[n]``.
        tokens: their tokens, int32, shape ``[n]``.
        failed: line of the batch, code and sentence of those that could not be computed.
        logprobs: of the new tokens of those rows that asked; ``sequence`` is the line.
        prompt_logprobs: the same for prompt tokens.
        reported: rows whose prompts were reported, and up to which token.
    """

    lines: NDArray[np.int64]
    tokens: NDArray[np.int32]
    failed: list[tuple[int, str, str]] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    reported: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def failure(cls, line: int, code: str, sentence: str) -> StepResult:
        """Nothing but one failure."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int32), [(line, code, sentence)])

    def shifted(self, by: int) -> StepResult:
        """The same, for a batch in which the lines come later."""
        return StepResult(
            self.lines + by,
            self.tokens,
            [(line + by, code, sentence) for line, code, sentence in self.failed],
            [msgspec.structs.replace(r, sequence=r.sequence + by) for r in self.logprobs],
            [msgspec.structs.replace(r, sequence=r.sequence + by) for r in self.prompt_logprobs],
            self.reported,
        )

    @classmethod
    def merge(cls, parts: list[StepResult]) -> StepResult:
        """Results of parts of a batch, in their order, as one."""
        return cls(
            np.concatenate([part.lines for part in parts]),
            np.concatenate([part.tokens for part in parts]),
            [failure for part in parts for failure in part.failed],
            [report for part in parts for report in part.logprobs],
            [report for part in parts for report in part.prompt_logprobs],
            [reported for part in parts for reported in part.reported],
        )


class Runner:
    """The model with its attention and its sampler."""

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

    @torch.inference_mode()
    def run(self, batch: StepBatch) -> StepResult:
        """Compute a batch. After an exception the same batch may be run again."""
        try:
            result = self._run(batch)
        except BaseException:
            self._attention.forget()
            raise
        if result.failed:
            self._attention.forget()
        return result

    def _run(self, batch: StepBatch) -> StepResult:
        self._pace.begin(len(batch.ids))
        self._attention.plan(batch)
        hidden = self._decoder.hidden(
            torch.from_numpy(batch.ids), torch.from_numpy(batch.positions), self._attention
        )
        result = StepResult(np.flatnonzero(batch.samples), np.zeros(0, np.int32))
        if len(result.lines) < len(batch):
            self._check_chunks(batch, hidden, result)
        if (self._rows.prompt_logprobs[batch.rows] >= 0).any():
            self._report_prompts(batch, hidden, result)
        if len(result.lines):
            if len(result.lines) < len(hidden):
                hidden = hidden[torch.from_numpy(batch.last[result.lines])]
            self._sample(batch, hidden, result)
        self._pace.end()
        return result

    def _check_chunks(self, batch: StepBatch, hidden: torch.Tensor, result: StepResult) -> None:
        """Fail prompts that have gone wrong before their pages are shared with others.

        The last token of a chunk attends to all before it, so a NaN anywhere shows in it.
        """
        lines = np.flatnonzero(~batch.samples)
        sums = hidden[torch.from_numpy(batch.last[lines])].sum(-1)
        for i in np.flatnonzero(~torch.isfinite(sums).numpy()).tolist():
            result.failed.append((int(lines[i]), *_NOT_FINITE))

    def _sample(self, batch: StepBatch, hidden: torch.Tensor, result: StepResult) -> None:
        """Choose the next token of each line that is ready for one."""
        columns = self._rows
        logits = self._decoder.logits(hidden)
        row = batch.rows[result.lines]
        asking = np.flatnonzero(columns.logprobs[row] >= 0)
        raw = torch.log_softmax(logits[torch.from_numpy(asking)], -1) if len(asking) else None
        bad: dict[int, tuple[str, str]] = {}
        if self._processors.wanted(row):
            raised = self._processors.apply(logits, row, lambda: self._decoder.logits(hidden))
            bad = {i: ("strategy_error", sentence) for i, sentence in raised.items()}
        best, tokens = logits.max(-1)
        # A NaN anywhere in a line makes its maximum NaN.
        if not math.isfinite(best.sum().item()):
            for i in np.flatnonzero(~torch.isfinite(best).numpy()).tolist():
                bad.setdefault(i, _NOT_FINITE)
        drawing = np.flatnonzero(~columns.is_greedy[row])
        if bad:
            drawing = drawing[~np.isin(drawing, list(bad))]
        if len(drawing):
            chosen = torch.from_numpy(drawing)
            positions = batch.starts + batch.counts
            tokens[chosen] = self._draw(
                logits[chosen], row[drawing], positions[result.lines[drawing]]
            )
        result.tokens = tokens.numpy().astype(np.int32)
        if raw is not None:
            lines = result.lines[asking]
            result.logprobs = report(
                raw, lines.tolist(), result.tokens[asking].tolist(), columns.logprobs[row[asking]]
            )
        if bad:
            result.failed += [(int(result.lines[i]), *bad[i]) for i in sorted(bad)]
            good = ~np.isin(np.arange(len(result.lines)), list(bad))
            result.lines, result.tokens = result.lines[good], result.tokens[good]

    def _draw(
        self, logits: torch.Tensor, row: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> torch.Tensor:
        columns = self._rows
        random = torch.from_numpy(uniform(columns.seed[row], positions))
        temperature = torch.from_numpy(columns.temperature[row])
        if not columns.is_filtered[row].any():
            return sample(logits, temperature, random)
        return sample(
            logits,
            temperature,
            random,
            torch.from_numpy(columns.top_k[row]),
            torch.from_numpy(columns.top_p[row]),
            torch.from_numpy(columns.min_p[row]),
        )

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
