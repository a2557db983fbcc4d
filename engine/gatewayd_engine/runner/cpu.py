"""Runs one batch: forward, logits, sampling. Knows rows, not the queue."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.compaction_queries import Ask, CompactionQueries
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_api import Attend
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.process.plugin_faults import Fault
from gatewayd_engine.process.thread_tuning import ThreadTuning
from gatewayd_engine.runner.pooling import pool, pool_spans, tell
from gatewayd_engine.runner.prompt_logprobs import report_prompts
from gatewayd_engine.sampling.guides.processors import GuidedProcessors
from gatewayd_engine.sampling.logprobs import report
from gatewayd_engine.sampling.token_picker import TokenPicker
from gatewayd_engine.sampling.verified_drafts import leave_out, verify, wanted_of
from gatewayd_engine.state.in_flight import Done, Launched
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import NOT_FINITE, StepResult, Tokens
from gatewayd_hooks.kv_compression import Compacted


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


class StepRunner(Protocol):
    """Computes batches.

    Attributes:
        shows_hidden: whether results have hidden states, which a drafter wants to see; set before
            a step is launched. Those who have them anyhow show them always.
    """

    shows_hidden: bool

    @property
    def overlaps(self) -> bool:
        """Whether a step may be launched before the one before it has landed."""

    @property
    def verifies_all(self) -> bool:
        """Whether drafts may be drawn, and rows with logits processors have any.

        Where not, drafts of rows that follow a grammar are chains.
        """

    @property
    def reads_tables(self) -> bool:
        """Whether its batches need block tables; they are large where contexts are long."""

    def most_drafts(self, num_lines: int) -> int:
        """How many drafts each of so many sequences may have in a step."""

    def launch(self, batch: StepBatch) -> Launched:
        """Begin to compute a batch; after an exception the same may be launched again."""


class Runner:
    """The model with its attention and its sampler; each step is computed when it is launched."""

    overlaps = False
    verifies_all = True
    reads_tables = True
    shows_hidden = True

    def __init__(
        self,
        decoder: Decoder,
        attention: AttentionBackend,
        pool: KvPool,
        rows: RunningBatch,
        processors: GuidedProcessors,
        pace: ThreadTuning,
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._pool = pool
        self._rows = rows
        self._processors = processors
        self._pace = pace
        self._choice = TokenPicker(rows)
        # The last token of each row, for steps that are launched before it is told.
        self._sampled = np.zeros(len(rows.seed), np.int32)

    def most_drafts(self, num_lines: int) -> int:
        """See ``StepRunner``: as many as its tokens are."""
        return self._rows.tokens.shape[1]

    def launch(self, batch: StepBatch) -> Launched:
        """See ``StepRunner``."""
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
        result.lost = {int(tokens.lines[i]): fault for i, fault in lost.items()}
        if result.failed:
            self._attention.forget()
        return result

    @torch.inference_mode()
    def fit(
        self, prompt: NDArray[np.int32], pages: list[int], last: int, covered: int, ask: Ask
    ) -> list[Compacted]:
        """See ``Fits``."""
        end = len(prompt)
        attend = CompactionQueries(
            self._decoder.spec.attention, self._pool, pages, end, covered, ask
        )
        self._pool.arrivals.wait()
        self._pace.begin(last)
        self._decoder.hidden(
            torch.from_numpy(prompt[end - last :].astype(np.int64)),
            torch.arange(end - last, end),
            attend,
        )
        self._pace.end()
        return attend.found

    def _run(self, batch: StepBatch) -> StepResult:
        self._pace.begin(len(batch.ids))
        self._attention.plan(batch)
        lines = np.flatnonzero(batch.samples)
        drafts = None if batch.drafts is None else batch.drafts.at(lines)
        self._processors.begin(batch.rows[lines], drafts)
        hidden = self._decoder.hidden(
            torch.from_numpy(batch.ids), torch.from_numpy(batch.positions), self._attention
        )
        result = StepResult(hidden=hidden)
        if len(lines) < len(batch):
            self._check_chunks(batch, hidden, result)
        report_prompts(batch, self._rows, lambda at: self._decoder.logits(hidden[at]), result)
        if spans := pool_spans(batch, self._rows):
            tell(spans, pool(hidden, spans), result)
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
        bad: dict[int, Fault] = {}
        if self._processors.wanted_by(row).any():
            bad = self._processors.apply(logits, row, lambda: self._decoder.logits(hidden))
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
        leave_out(lines, bad, result)

    def _verify(
        self, batch: StepBatch, lines: NDArray[np.int64], hidden: torch.Tensor, result: StepResult
    ) -> None:
        """Choose the next tokens of each line that is ready for some, by its drafts."""
        if batch.drafts is None:
            return
        wanted = wanted_of(batch, batch.drafts, lines)
        if len(wanted) < len(hidden):
            hidden = hidden[torch.from_numpy(wanted)]
        logits = self._decoder.logits(hidden)
        spoilt = verify(
            batch, batch.drafts, lines, logits, self._rows, self._processors, self._choice, result
        )
        if batch.drafts.parents is not None:
            self._attention.keep(batch, result.tokens)
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
