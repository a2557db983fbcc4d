"""Steps with drafts on a device, which chooses the tokens; the host sees which drafts hold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.batch import DraftLines, StepBatch
from gatewayd_engine.device.choice import KeyedChoice
from gatewayd_engine.device.state import DeviceRows
from gatewayd_engine.device.transfers import upload
from gatewayd_engine.faults import Fault
from gatewayd_engine.flight import Launched
from gatewayd_engine.guides.processors import GuidedProcessors
from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.pooling import pool, pool_spans, tell
from gatewayd_engine.processing import Processors
from gatewayd_engine.prompts import report_prompts
from gatewayd_engine.result import NOT_FINITE, StepResult
from gatewayd_engine.rows import Rows
from gatewayd_engine.verified import leave_out, verify, wanted_of


class DraftedSteps:
    """Computes them, one after the other: the next drafts follow from the tokens of the last.

    No line with drafts has logits processors; those of others act on the device. What a guide
    allows behind drafts is known before they are verified.

    Args:
        decoder: the model.
        pool: where keys and values are.
        rows: of the batch.
        processors: of the rows.
        state: the rows on the device.
        kernels: of the device.
        hidden: runs the layers of a batch.
        launch: runs a batch without drafts.
    """

    def __init__(
        self,
        decoder: Decoder,
        pool: KvPool,
        rows: Rows,
        processors: GuidedProcessors,
        state: DeviceRows,
        kernels: Kernels,
        hidden: Callable[[StepBatch], torch.Tensor],
        launch: Callable[[StepBatch], Launched],
    ) -> None:
        self._decoder = decoder
        self._pool = pool
        self._rows = rows
        self._processors = processors
        self._state = state
        self._hidden = hidden
        self._launch = launch
        self._choice = KeyedChoice(rows, kernels, state.sampling)
        # What they do is done before verifying.
        self._none = Processors((), (), len(rows.seed), lambda name, error: False)

    def run(self, batch: StepBatch, drafts: DraftLines, lines: NDArray[np.int64]) -> StepResult:
        """Compute a batch of which ``lines`` get tokens, shape ``[n]``."""
        device, result = self._decoder.device, StepResult()
        hidden = self._hidden(batch)
        self._check_chunks(batch, hidden, result)
        report_prompts(
            batch,
            self._rows,
            lambda at: self._decoder.raw_logits(hidden[at]).float().cpu(),
            result,
        )
        if spans := pool_spans(batch, self._rows):
            tell(spans, pool(hidden, spans).cpu(), result)
        wanted = upload(wanted_of(batch, drafts, lines), device)
        raw = self._decoder.raw_logits(hidden.index_select(0, wanted))
        logits, raised = self._processed(batch, drafts, lines, raw)
        spoilt = verify(
            batch,
            drafts,
            lines,
            logits,
            self._rows,
            self._none,
            self._choice,
            result,
            reported=raw,
        )
        leave_out(lines, raised, result)
        tokens = result.tokens
        rows, last = batch.rows[tokens.lines], tokens.last
        self._state.last_tokens.index_copy_(0, upload(rows, device), upload(last, device))
        for depth in range(tokens.ids.shape[1] - 1):
            more = np.flatnonzero(tokens.counts > depth + 1)
            self._processors.advance(rows[more], tokens.ids[more, depth])
        self._processors.settle()
        lost = self._processors.append(rows, last)
        result.lost = {int(tokens.lines[i]): fault for i, fault in lost.items()}
        if not spoilt:
            return result
        merged = StepResult.merge([result, *(self._run_plain(batch, line) for line in spoilt)])
        merged.said = result.said
        return merged

    def _processed(
        self, batch: StepBatch, drafts: DraftLines, lines: NDArray[np.int64], raw: torch.Tensor
    ) -> tuple[torch.Tensor, dict[int, Fault]]:
        """Logits as processors and guides leave them, and on which lines one has failed."""
        row = batch.rows[lines]
        if not self._processors.wanted_by(row).any():
            return raw, {}
        logits = raw.to(torch.float32, copy=True)
        return logits, self._processors.apply_along(logits, row, drafts.at(lines), raw.float)

    def _check_chunks(self, batch: StepBatch, hidden: torch.Tensor, result: StepResult) -> None:
        """See ``Runner``."""
        lines = np.flatnonzero(~batch.samples)
        last = hidden.index_select(0, upload(batch.last[lines], hidden.device))
        sums = last.sum(-1, dtype=torch.float32).cpu().numpy()
        for i in np.flatnonzero(~np.isfinite(sums)).tolist():
            result.failed.append((int(lines[i]), *NOT_FINITE))

    def _run_plain(self, batch: StepBatch, line: int) -> StepResult:
        """One line anew, without its drafts: what they left behind may be no numbers."""
        size = self._pool.page_size
        places = np.arange(
            batch.starts[line] + batch.settled[line], batch.starts[line] + batch.counts[line]
        )
        table = self._rows.block_table[batch.rows[line]]
        pages = upload(table[places // size], self._decoder.device)
        raw = self._pool.data.view(torch.uint8)
        raw[pages, :, :, upload(places % size, self._decoder.device)] = 0
        return self._launch(batch.only(line).without_drafts()).result().shifted(line)
