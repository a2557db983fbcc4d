"""Attention of fused steps on a CPU: the plan of a step for ``FusedStep``.

Steps that a fused step cannot compute are attended layer by layer in torch: those in which a KV
compression selects slots, or whose sequences have compacted prefixes.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.kv_selection import SelectingCompression, Selection
from gatewayd_engine.attention.sparse import SelectiveAttention
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.fused.data import PagedRows
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import Tokens


class FusedAttention:
    """``AttentionBackend`` of a decoder with a fused step.

    Args:
        by_layer: attention of other steps.
        compression: the KV compression in use.
        selection: its calls, which ``by_layer`` shares.
        pool: KV pool, without a codec.

    Attributes:
        rows: of this step; None where it is attended layer by layer.
    """

    def __init__(
        self,
        by_layer: SelectiveAttention,
        compression: SelectingCompression,
        selection: Selection,
        pool: KvPool,
    ) -> None:
        self._by_layer = by_layer
        self._compression = compression
        self._selection = selection
        self._pool = pool
        self.rows: PagedRows | None = None
        self._was_fused = True

    @property
    def planned(self) -> PagedRows:
        """Return ``rows`` of a step that fits.

        Raises:
            ValueError: it is attended layer by layer.
        """
        if self.rows is None:
            raise ValueError("the step is attended layer by layer")
        return self.rows

    def fits(self, batch: StepBatch) -> bool:
        """Whether a fused step can compute a batch."""
        return self._compression.selecting is None and batch.fronts is None

    def plan(self, batch: StepBatch) -> None:
        """Plan the attention of one step; see ``AttentionBackend``."""
        fits = self.fits(batch)
        if fits != self._was_fused:
            # Fused steps append to pages alone, so copies of contexts lack their tokens.
            self._by_layer.discard_copies()
            self._was_fused = fits
        self.rows = None
        if not fits:
            self._by_layer.plan(batch)
            return
        # It learns from this call that there is no strategy any more.
        self._selection.start_step(batch)
        self._pool.transfers.wait()
        lines = np.arange(len(batch))
        if len(batch.ids) > len(batch):
            lines = np.repeat(lines, batch.counts)
        table = np.ascontiguousarray(batch.block_table, np.int64)
        self.rows = PagedRows(
            np.ascontiguousarray(batch.positions, np.int64),
            np.ascontiguousarray(batch.cache_positions, np.int64),
            lines,
            table,
            self._pool.data,
            *_trees(batch, lines),
        )

    def __call__(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        """See ``Attend``; for steps without ``rows``."""
        return self._by_layer(layer, query, key_value)

    def compact(self, batch: StepBatch, tokens: Tokens) -> None:
        """See ``AttentionBackend``."""
        self._by_layer.compact(batch, tokens)

    def zero_kv(self, batch: StepBatch, line: int, first: int, end: int) -> None:
        """See ``AttentionBackend``."""
        self._by_layer.zero_kv(batch, line, first, end)

    def discard_copies(self) -> None:
        """See ``AttentionBackend``."""
        self._by_layer.discard_copies()


def _trees(
    batch: StepBatch, lines: NDArray[np.int64]
) -> tuple[NDArray[np.uint8] | None, NDArray[np.int64] | None]:
    """Return ``visible`` and ``drafts`` of ``PagedRows``."""
    drafts = batch.drafts
    if drafts is None or drafts.parents is None:
        return None, None
    width = drafts.tokens.shape[1] + 1
    sees, _ = drafts.lineage(width)
    # Index of each row in its sequence: 0 is the last token, the drafts follow.
    within = np.arange(len(lines)) - (batch.last - batch.counts + 1)[lines]
    is_chunk = lines >= batch.num_decode
    visible = sees[lines, np.where(is_chunk, 0, within)].astype(np.uint8)
    # Nothing of a prefill chunk is masked: its masks begin behind its own slot.
    first = np.where(is_chunk, batch.cache_positions + 1, batch.starts[lines])
    return np.ascontiguousarray(visible), first
