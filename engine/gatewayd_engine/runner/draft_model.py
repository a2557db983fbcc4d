"""A draft model on a CPU: a decoder with pages of its own for each row."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.reference import ReferenceAttention
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.process.thread_tuning import ThreadTuning
from gatewayd_engine.runner.gpu.draft_model import PAGE_SIZE
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import DraftLines, gather

_FEW = 8
"""Tokens at once that decode like one with drafts behind it."""


class RowModel:
    """See ``DraftModel``: a decoder with pages of its own for each row.

    Args:
        decoder: the model.
        max_running: rows.
        max_model_len: tokens of a row.
        pace: chooses threads for its steps.
    """

    def __init__(
        self, decoder: Decoder, max_running: int, max_model_len: int, pace: ThreadTuning
    ) -> None:
        self._pace = pace
        self.vocab_size = decoder.spec.vocab_size
        self.max_model_len = max_model_len
        self._decoder = decoder
        self._rows = RunningBatch(max_running, max_model_len, PAGE_SIZE)
        pages = self._rows.block_table.shape[1]
        self._rows.block_table[:] = np.arange(max_running * pages).reshape(max_running, pages)
        shape = decoder.spec.attention
        pool = KvPool(shape, max_running * pages, PAGE_SIZE, decoder.dtype, str(decoder.device))
        self._attention = ReferenceAttention(shape, pool, max_running, pool.data.nbytes)

    @torch.inference_mode()
    def extend(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        tokens: NDArray[np.int32],
    ) -> torch.Tensor:
        """See ``DraftModel``."""
        try:
            return self._extend(rows, starts, counts, tokens)
        except BaseException:
            # Whoever has it next begins each row anew, and finds no half a copy.
            self._attention.forget()
            raise

    def _extend(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        tokens: NDArray[np.int32],
    ) -> torch.Tensor:
        ends = starts + counts
        for i, row in enumerate(rows.tolist()):
            self._rows.tokens[row, starts[i] : ends[i]] = tokens[i, : counts[i]]
        lines = np.arange(len(rows), dtype=np.int32)
        # A few tokens at once decode like one with drafts behind it: their contexts stay dense.
        more = np.where(counts <= _FEW, counts - 1, 0)
        batch = gather(
            self._rows,
            lines,
            rows.astype(np.int32),
            rows,
            starts.astype(np.int32),
            (counts - more).astype(np.int32),
            ends.astype(np.int32),
            _chains(tokens, more) if more.any() else None,
        )
        self._pace.begin(len(batch.ids))
        self._attention.plan(batch)
        hidden = self._decoder.hidden(
            torch.from_numpy(batch.ids), torch.from_numpy(batch.positions), self._attention
        )
        logits = self._decoder.logits(hidden[torch.from_numpy(batch.last)])
        self._pace.end()
        return logits[torch.from_numpy(np.argsort(batch.slots))]


def _chains(tokens: NDArray[np.int32], counts: NDArray[np.int64]) -> DraftLines:
    """What follows the first token of each row, as drafts that are known to be right."""
    return DraftLines(
        counts,
        tokens[:, 1 : 1 + int(counts.max())],
        None,
        None,
        np.full(len(counts), -1, np.int64),
    )


def row_model(decoder: Decoder, max_running: int, max_model_len: int) -> RowModel:
    """One that leaves the threads of its steps as they are."""
    return RowModel(decoder, max_running, max_model_len, ThreadTuning(1, lambda count: None))
