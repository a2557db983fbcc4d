"""Persistent batch rows on the device, updated incrementally from the host's."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kernels.base import SamplingColumns
from gatewayd_engine.kernels.transfers import upload
from gatewayd_engine.state.running_batch import Changes, RunningBatch


class DeviceRows:
    """Device copy of the columns of ``RunningBatch`` that steps read, and each row's last token.

    Only changes are uploaded. One additional row is for padding sequences: it samples greedily, and
    its pages are the scratch page.

    Args:
        rows: rows of the host, which record their changes from now on.
        scratch: page that belongs to no sequence.
        device: device of the copy.

    Attributes:
        padding: row of padding sequences.
        last_tokens: last sampled token of each row, int32, shape ``[rows + 1]``.
        block_table: int32, shape ``[rows + 1, max_pages]``.
        sampling: sampling parameters of the rows.
    """

    def __init__(self, rows: RunningBatch, scratch: int, device: torch.device) -> None:
        num_rows, max_pages = rows.block_table.shape
        # The rows are still empty, as these columns are: from here on only changes differ.
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

    def sync(self) -> None:
        """Upload the changes since the last call."""
        changes = self._rows.changes
        if changes is None or not (changes.taken or changes.pages):
            return
        if changes.taken:
            self._sync_sampling(np.array(sorted(changes.taken), np.int64))
        if changes.pages:
            self._sync_pages(changes.pages)
        # Cleared last: a step that fails before this is launched again.
        self._rows.changes = Changes()

    def _sync_sampling(self, taken: NDArray[np.int64]) -> None:
        host = self._rows
        # Two uploads, grouped by dtype, instead of six. Of a seed the bits are copied.
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

    def _sync_pages(self, places: list[tuple[int, int, int]]) -> None:
        table = self._rows.block_table
        width = table.shape[1]
        # An entry may have changed twice; its current value is uploaded.
        cells = np.unique(
            np.concatenate([np.arange(n) + row * width + first for row, first, n in places])
        )
        index, pages = upload(np.stack([cells, table.reshape(-1)[cells]]), self._device)
        self.block_table.view(-1).index_copy_(0, index, pages.to(torch.int32))
