"""CPU runner: forward pass, logits and sampling of one batch, independent of scheduling."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.compaction_queries import Ask, CompactionQueries
from gatewayd_engine.attention.fused import FusedAttention
from gatewayd_engine.kv.host_transfers import HostTransfers
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.fused.data import Draws, StepOutputs
from gatewayd_engine.model.fused.step import FusedStep
from gatewayd_engine.model.servable import ServableModel
from gatewayd_engine.process.plugin_faults import Fault
from gatewayd_engine.process.thread_tuning import ThreadTuning
from gatewayd_engine.runner.attention_backend import AttentionBackend
from gatewayd_engine.runner.cpu_steps import (
    StepInFlight,
    check_chunks,
    needs_tokens_alone,
    torch_threads,
)
from gatewayd_engine.runner.pooling import pool, pool_spans, record_pooled
from gatewayd_engine.runner.prompt_logprobs import report_prompts
from gatewayd_engine.sampling.guides.processors import GuidedProcessors
from gatewayd_engine.sampling.logprobs import report
from gatewayd_engine.sampling.token_picker import (
    DrawSettings,
    TokenPicker,
    draw_into,
    step_draws,
)
from gatewayd_engine.sampling.verified_drafts import record_failed, tokens_to_verify, verify
from gatewayd_engine.state.in_flight import Done, Launched
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import NOT_FINITE, StepResult, Tokens
from gatewayd_hooks.kv_compression import Compacted


class Runner:
    """Runner of model, attention and sampler.

    ``launch`` computes the whole step, or starts it where a fused step yields tokens alone: then
    one thread plans the next step while the others compute, and joins them afterwards.
    """

    verifies_all = True
    reads_tables = True
    shows_hidden = True

    def __init__(
        self,
        decoder: ServableModel,
        attention: AttentionBackend,
        pool: KvPool,
        rows: RunningBatch,
        processors: GuidedProcessors,
        pace: ThreadTuning,
        fused: FusedStep | None = None,
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._fused = fused
        self._pool = pool
        self._rows = rows
        self._processors = processors
        self._pace = pace
        self._choice = TokenPicker(rows)
        # The last token of each row, for steps that are launched before it is recorded.
        self._sampled = np.zeros(len(rows.seed), np.int32)
        self._in_flight: StepInFlight | None = None
        if fused is not None and isinstance(pool.transfers, HostTransfers):
            pool.settle = pool.transfers.settle = fused.join

    @property
    def overlaps(self) -> bool:
        """See ``StepRunner``; not with grammars, whose forced tokens follow from the last one."""
        return self._fused is not None and not self._processors.guides_any

    def most_drafts(self, num_lines: int) -> int:
        """See ``StepRunner``; bounded only by the length of a row."""
        return self._rows.tokens.shape[1]

    def launch(self, batch: StepBatch) -> Launched:
        """See ``StepRunner``."""
        if self._in_flight is not None:
            # Its tokens are inputs of this step.
            self._in_flight.result()
            self._in_flight = None
        attention = self._attention
        if (
            self._fused is None
            or not self.overlaps
            or not isinstance(attention, FusedAttention)
            or not attention.fits(batch)
            or not needs_tokens_alone(batch, self._rows, self._processors)
        ):
            return Done(self.run(batch))
        self._in_flight = self._started(batch, attention, self._fused)
        return self._in_flight

    def _started(
        self, batch: StepBatch, attention: FusedAttention, fused: FusedStep
    ) -> StepInFlight:
        self._fill_unknown(batch)
        self._pace.start_step(len(batch.ids))
        attention.plan(batch)
        lines = batch.samples.nonzero()[0]
        row = batch.rows[lines]
        draws = None
        if not self._rows.is_greedy[row].all():
            draws = step_draws(self._choice.settings(row), batch.sampled_positions(lines))
        stream = self._decoder.embed(torch.from_numpy(batch.ids))
        outputs = fused.start(stream, attention.planned, batch.last[lines], draws)
        return StepInFlight(fused, batch, lines, outputs, self._sampled, self._pace.end_step)

    def _fill_unknown(self, batch: StepBatch) -> None:
        """Fill in tokens that the previous step sampled, and whose result is not committed yet."""
        if batch.unknown is not None:
            batch.ids[batch.last[batch.unknown]] = self._sampled[batch.rows[batch.unknown]]

    @torch.inference_mode()
    def run(self, batch: StepBatch) -> StepResult:
        """Compute a batch. After an exception the same batch may be run again."""
        self._fill_unknown(batch)
        self._pace.start_step(len(batch.ids))
        try:
            result = self._run(batch)
        except BaseException:
            # Restore the state before the step, so that it can be repeated: dense copies may hold a
            # part of it, and processors may have received accepted drafts.
            self._attention.discard_copies()
            # Drafts are not among the sequence's tokens.
            lengths = (batch.starts + batch.settled).tolist()
            self._processors.rewind(
                self._rows, dict(zip(batch.rows.tolist(), lengths, strict=True))
            )
            raise
        self._pace.end_step()
        self._processors.settle()
        tokens = result.tokens
        rows, last = batch.rows[tokens.entries], tokens.last
        self._sampled[rows] = last
        lost = self._processors.append(rows, last)
        result.lost = {int(tokens.entries[i]): fault for i, fault in lost.items()}
        # Failed sequences may have written NaN to dense copies, which a mask does not suppress for
        # the next sequence in the same row.
        if result.failed:
            self._attention.discard_copies()
        return result

    @torch.inference_mode()
    def fit(
        self, prompt: NDArray[np.int32], pages: list[int], last: int, covered: int, ask: Ask
    ) -> list[Compacted]:
        """See ``CompactionRunner``."""
        end = len(prompt)
        attend = CompactionQueries(
            self._decoder.spec.attention, self._pool, pages, end, covered, ask
        )
        # This attention does not wait for the loads of a layer, as that of a step does.
        self._pool.transfers.wait()
        self._pace.start_step(last)
        self._decoder.hidden(
            torch.from_numpy(prompt[end - last :].astype(np.int64)),
            torch.arange(end - last, end),
            attend,
        )
        self._pace.end_step()
        return attend.found

    def _run(self, batch: StepBatch) -> StepResult:
        self._attention.plan(batch)
        lines = np.flatnonzero(batch.samples)
        drafts = None if batch.drafts is None else batch.drafts.at(lines)
        # Before the layers, so that a thread fills grammar masks while they compute.
        self._processors.start_step(batch.rows[lines], drafts)
        # Logits of these tokens only: a chunk within a prompt has none.
        wanted, settings, draws = batch.last[lines], None, None
        if batch.drafts is not None:
            wanted = tokens_to_verify(batch, batch.drafts, lines)
        elif not self._rows.is_greedy[row := batch.rows[lines]].all():
            settings = self._choice.settings(row)
            # A row whose logits are processed is drawn from those.
            is_raw = ~self._processors.wanted_by(row)
            draws = step_draws(settings, batch.sampled_positions(lines), is_raw)
        outputs = self._forward(batch, wanted, draws)
        hidden = outputs.hidden
        result = StepResult(hidden=hidden)
        # The logits of sequences that sample are checked anyway.
        if len(lines) < len(batch):
            check_chunks(batch, hidden, result)
        report_prompts(batch, self._rows, lambda at: self._decoder.logits(hidden[at]), result)
        if spans := pool_spans(batch, self._rows):
            record_pooled(spans, pool(hidden, spans), result)
        if len(lines) and batch.drafts is not None:
            self._verify(batch, lines, outputs.logits, result)
        elif len(lines):
            self._sample(batch, lines, outputs, settings, result)
        return result

    def _forward(
        self, batch: StepBatch, wanted: NDArray[np.int64], draws: Draws | None
    ) -> StepOutputs:
        """Run the model on a planned step, with logits of the tokens ``wanted``.

        Only a fused step draws tokens; see ``StepOutputs.draws``.
        """
        rows = self._attention.rows if isinstance(self._attention, FusedAttention) else None
        if self._fused is not None and rows is not None:
            stream = self._decoder.embed(torch.from_numpy(batch.ids))
            outputs = self._fused.start(stream, rows, wanted, draws)
            self._fused.join()
            return outputs
        ids = torch.from_numpy(batch.ids)
        with torch_threads(self._fused):
            hidden = self._decoder.hidden(ids, torch.from_numpy(batch.positions), self._attention)
        # A pure decode batch needs no gather.
        index = slice(None) if len(wanted) == len(hidden) else torch.from_numpy(wanted)
        logits = self._decoder.logits(hidden[index])
        best, tokens = logits.max(-1)
        return StepOutputs(hidden, logits, best, tokens)

    def _sample(
        self,
        batch: StepBatch,
        lines: NDArray[np.int64],
        outputs: StepOutputs,
        settings: DrawSettings | None,
        result: StepResult,
    ) -> None:
        """Sample the next token of each of these sequences, greedily without settings."""
        columns, logits = self._rows, outputs.logits
        best, tokens = outputs.best, outputs.tokens
        row = batch.rows[lines]
        asking = np.flatnonzero(columns.logprobs[row] >= 0)
        # Before processors change the logits in place: reports are of the raw distribution.
        raw = torch.log_softmax(logits[torch.from_numpy(asking)], -1) if len(asking) else None
        bad: dict[int, Fault] = {}
        if self._processors.wanted_by(row).any():
            last = torch.from_numpy(batch.last[lines])
            raw_logits = lambda: self._decoder.logits(outputs.hidden[last])  # noqa: E731
            bad = self._processors.apply(logits, row, raw_logits)
            best, tokens = logits.max(-1)
            if outputs.draws is not None:
                is_drawn = torch.from_numpy(outputs.draws.is_drawn)
                tokens = torch.where(is_drawn, outputs.tokens, tokens)
        if settings is not None:
            is_bad = np.isin(np.arange(len(lines)), list(bad)) if bad else None
            left, positions = settings.without(outputs.draws), batch.sampled_positions(lines)
            draw_into(tokens, best, logits, left, positions, is_bad)
        # One reduction for the whole batch; rows are examined only if any is not finite.
        if not math.isfinite(best.sum().item()):
            for i in np.flatnonzero(~torch.isfinite(best).numpy()).tolist():
                # A processor's fault is reported rather than the NaN that it may have caused.
                bad.setdefault(i, NOT_FINITE)
        ids = tokens.numpy().astype(np.int32)
        if raw is not None:
            result.logprobs = report(
                raw, lines[asking].tolist(), ids[asking].tolist(), columns.logprobs[row[asking]]
            )
        result.tokens = Tokens.single(lines, ids)
        record_failed(lines, bad, result)

    def _verify(
        self, batch: StepBatch, lines: NDArray[np.int64], logits: torch.Tensor, result: StepResult
    ) -> None:
        """Verify the drafts of each of these sequences, and choose its next tokens."""
        if batch.drafts is None:
            return
        spoilt = verify(
            batch, batch.drafts, lines, logits, self._rows, self._processors, self._choice, result
        )
        # Accepted drafts of a chain are at their positions already.
        if batch.drafts.parents is not None:
            self._attention.compact(batch, result.tokens)
        if spoilt:
            parts = [result, *(self._run_plain(batch, line) for line in spoilt)]
            merged = StepResult.merge(parts)
            result.tokens, result.failed = merged.tokens, merged.failed
            # Hidden states of the merged parts are in different layouts.
            result.logprobs, result.hidden = merged.logprobs, None

    def _run_plain(self, batch: StepBatch, line: int) -> StepResult:
        """Recompute a sequence without its drafts, which may have produced NaN.

        NaN in the keys and values of a draft also affects other tokens than its descendants, as a
        mask does not suppress it.
        """
        end = int(batch.starts[line] + batch.counts[line])
        first = int(batch.starts[line] + batch.settled[line])
        # The pool first: dense copies are gathered from it again.
        self._attention.zero_kv(batch, line, first, end)
        self._attention.discard_copies()
        return self._run(batch.only(line).without_drafts()).shifted(line)
