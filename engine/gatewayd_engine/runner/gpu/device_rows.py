"""Rows on the device: what its steps read without being told again."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kernels.base import SamplingColumns
from gatewayd_engine.kernels.transfers import upload
from gatewayd_engine.state.running_batch import Changes, RunningBatch


class DeviceRows:
    """The columns of ``RunningBatch`` that a step reads, and the last token of each row.

    Only differences travel. One row more than there are is for padded lines: it takes the likeliest
    token, and its pages are scratch.

    Args:
        rows: the host's, which tell from now on what changes.
        scratch: the page that nobody has.
        device: where this is.

    Attributes:
        padding: the row of padded lines.
        last_tokens: int32, shape ``[rows + 1]``; what a step has chosen last.
        block_table: int32, shape ``[rows + 1, max_pages]``.
        sampling: the rows' parameters.
    """

    def __init__(self, rows: RunningBatch, scratch: int, device: torch.device) -> None:
        num_rows, max_pages = rows.block_table.shape
        rows.changes = Changes()
        self._rows = rows
        self._device = device
        self.padding = num_rows
        shape = (num_rows + 1,)
        self.last_tokens = torch.zeros(shape, dtype=torch.int32, device=device)
        self.block_table = torch.full(
            (num_rows + 1, max_pages), scratch, dtype=torch.int32, device=device
        )
        self.sampling = SamplingColumns(
            temperature=torch.zeros(shape, device=device),
            top_k=torch.zeros(shape, dtype=torch.int32, device=device),
            top_p=torch.ones(shape, device=device),
            min_p=torch.zeros(shape, device=device),
            seed=torch.zeros(shape, dtype=torch.int64, device=device),
        )

    def follow(self) -> None:
        """Bring over what has changed since the last call."""
        changes = self._rows.changes
        if changes is None or not (changes.taken or changes.pages):
            return
        if changes.taken:
            self._follow_sampling(np.array(sorted(changes.taken), np.int64))
        if changes.pages:
            self._follow_pages(changes.pages)
        # Last: a step that fails before this is launched again.
        self._rows.changes = Changes()

    def _follow_sampling(self, taken: NDArray[np.int64]) -> None:
        host = self._rows
        floats = np.stack([host.temperature[taken], host.top_p[taken], host.min_p[taken]])
        whole = np.stack([taken, host.top_k[taken], host.seed[taken].view(np.int64)])
        temperature, top_p, min_p = upload(floats, self._device)
        index, top_k, seed = upload(whole, self._device)
        columns = self.sampling
        columns.temperature.index_copy_(0, index, temperature)
        columns.top_p.index_copy_(0, index, top_p)
        columns.min_p.index_copy_(0, index, min_p)
        columns.top_k.index_copy_(0, index, top_k.to(torch.int32))
        columns.seed.index_copy_(0, index, seed)

    def _follow_pages(self, places: list[tuple[int, int, int]]) -> None:
        table = self._rows.block_table
        width = table.shape[1]
        # A place may have changed twice; what it holds now is right.
        cells = np.unique(
            np.concatenate([np.arange(n) + row * width + first for row, first, n in places])
        )
        index, pages = upload(np.stack([cells, table.reshape(-1)[cells]]), self._device)
        self.block_table.view(-1).index_copy_(0, index, pages.to(torch.int32))
