"""Draft model on a CPU: a decoder with a fixed set of KV pages per row."""

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
from gatewayd_engine.state.step_batch import BatchDrafts, gather

_FEW = 8
"""Most tokens of a row that are computed as a decoding sequence with drafts."""


class RowModel:
    """CPU implementation of ``DraftModel``, with a fixed set of KV pages per row.

    Args:
        decoder: decoder of the draft model.
        max_running: number of rows.
        max_model_len: most tokens of a row.
        pace: tuning of threads per step.
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
        # A row always owns the same pages, so no allocator is needed.
        self._rows.block_table[:] = np.arange(max_running * pages).reshape(max_running, pages)
        shape = decoder.spec.attention
        pool = KvPool(shape, max_running * pages, PAGE_SIZE, decoder.dtype, str(decoder.device))
        self._attention = ReferenceAttention(
            shape, pool, max_running, pool.data.nbytes, sinks=decoder.sinks
        )

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
            # Rows are recomputed from their start afterwards, without partially updated copies.
            self._attention.discard_copies()
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
        # A few tokens are computed as one with drafts, so that dense contexts can be reused.
        more = np.where(counts <= _FEW, counts - 1, 0)
        # Row numbers serve as sequence ids too: the caller vouches for a row's tokens before
        # ``starts``, which is what a dense copy is reused for.
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
        self._pace.start_step(len(batch.ids))
        self._attention.plan(batch)
        hidden = self._decoder.hidden(
            torch.from_numpy(batch.ids), torch.from_numpy(batch.positions), self._attention
        )
        logits = self._decoder.logits(hidden[torch.from_numpy(batch.last)])
        self._pace.end_step()
        # ``gather`` sorts sequences by length; slots are their indices in the call.
        return logits[torch.from_numpy(np.argsort(batch.slots))]


def _chains(tokens: NDArray[np.int32], counts: NDArray[np.int64]) -> BatchDrafts:
    """Represent the tokens after the first of each row as a chain of drafts."""
    return BatchDrafts(
        counts,
        tokens[:, 1 : 1 + int(counts.max())],
        None,
        None,
        np.full(len(counts), -1, np.int64),
    )


def row_model(decoder: Decoder, max_running: int, max_model_len: int) -> RowModel:
    """Create a ``RowModel`` without tuning of threads."""
    return RowModel(decoder, max_running, max_model_len, ThreadTuning(1, lambda count: None))
