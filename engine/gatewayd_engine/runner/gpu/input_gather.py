"""Construction of a step's inputs on the device, from a few numbers per sequence."""

from __future__ import annotations

import numpy as np
import torch

from gatewayd_engine.attention.step_inputs import HostPlan, StepInputs
from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.transfers import pinned
from gatewayd_engine.runner.gpu.device_rows import DeviceRows
from gatewayd_engine.state.step_batch import StepBatch


class InputBuffers:
    """Persistent input tensors of steps, which keep their addresses, and their construction.

    Args:
        state: batch rows on the device.
        kernels: kernels of the device.
        page_size: tokens per page.
        max_lines: most sequences of a step.
        max_tokens: most tokens of a step.

    Attributes:
        rows: row of each sequence, int32, shape ``[max_lines]``.
        next_positions: position of the token that each sequence samples, int32, shape
            ``[max_lines]``.
    """

    def __init__(
        self, state: DeviceRows, kernels: Kernels, page_size: int, max_lines: int, max_tokens: int
    ) -> None:
        self._state = state
        self._kernels = kernels
        self._page_size = page_size
        self._max_lines = max_lines
        device = state.last_tokens.device
        max_pages = max_lines * state.block_table.shape[1]
        # Contiguous, so that a step needs a single upload.
        self._sizes = (max_lines, max_lines, max_lines, max_lines + 1, max_lines, max_lines + 1, 1)
        header = torch.zeros(sum(self._sizes) + max_tokens, dtype=torch.int32, device=device)
        self._header = header
        (
            self.rows,
            self._starts,
            self.next_positions,
            self._page_indptr,
            self._last_page_len,
            self._query_indptr,
            self._shared_pages,
            # Last, as its length varies: only the ids of the step's tokens are uploaded.
            self._given,
        ) = torch.split_with_sizes(header, (*self._sizes, max_tokens))
        self._ids = torch.zeros(max_tokens, dtype=torch.int64, device=device)
        self._positions = torch.zeros(max_tokens, dtype=torch.int64, device=device)
        self._write = torch.zeros(max_tokens, dtype=torch.int64, device=device)
        self._pages = torch.zeros(max_pages, dtype=torch.int32, device=device)

    def upload(self, batch: StepBatch, lines: int, shared_pages: int = 0) -> HostPlan:
        """Upload a batch.

        Args:
            batch: batch of the step.
            lines: sequences including padding, which only a batch of decoding sequences may have.
            shared_pages: pages of the prefix that all decoding sequences share.
        """
        n, size = len(batch), self._page_size
        padding = lines - n
        num_tokens = len(batch.ids) + padding
        # Sections have a fixed size, so that captured kernels find them at fixed addresses.
        host = np.zeros(sum(self._sizes) + num_tokens, np.int32)
        ends = np.cumsum(self._sizes)
        rows, starts, following, page_indptr, last_page_len, query_indptr, shared, given = np.split(
            host, ends
        )
        lengths = batch.starts + batch.counts
        num_pages = -(-lengths // size)
        rows[:n] = batch.rows
        rows[n:lines] = self._state.padding
        starts[:n] = batch.starts
        following[:n] = lengths
        np.cumsum(num_pages, out=page_indptr[1 : n + 1])
        # A padding sequence has one token in one page, the scratch page.
        page_indptr[n + 1 : lines + 1] = page_indptr[n] + np.arange(1, padding + 1)
        last_page_len[:n] = lengths - (num_pages - 1) * size
        last_page_len[n:lines] = 1
        np.cumsum(batch.counts, out=query_indptr[1 : n + 1])
        query_indptr[n + 1 : lines + 1] = query_indptr[n] + np.arange(1, padding + 1)
        shared[0] = shared_pages
        given[: len(batch.ids)] = batch.ids
        # The device replaces -1 by the row's last token, which the previous step has sampled.
        if batch.unknown is not None:
            given[batch.last[batch.unknown]] = -1
        # Pinned memory is copied asynchronously, and not reused before it has been read.
        sent = pinned(host, self._header.device)
        self._header[: len(host)].copy_(sent, non_blocking=True)
        _, _, _, page_indptr_, last_page_len_, query_indptr_, _, _ = torch.split_with_sizes(
            sent, (*self._sizes, num_tokens)
        )
        return HostPlan(
            batch.num_decode + padding,
            query_indptr_[: lines + 1],
            page_indptr_[: lines + 1],
            last_page_len_[:lines],
            shared_pages,
            int(lengths.max()),
        )

    def inputs(self, host: HostPlan, num_tokens: int) -> StepInputs:
        """Return the tensors of a step with ``num_tokens`` tokens; ``fill`` writes to them."""
        lines = host.num_lines
        return StepInputs(
            ids=self._ids[:num_tokens],
            positions=self._positions[:num_tokens],
            write=self._write[:num_tokens],
            page_indptr=self._page_indptr[: lines + 1],
            pages=self._pages,
            last_page_len=self._last_page_len[:lines],
            host=host,
            shared_pages=self._shared_pages,
            query_indptr=self._query_indptr[: lines + 1],
        )

    def fill(self, inputs: StepInputs, max_tokens: int) -> None:
        """Build a step's inputs; ``max_tokens`` is the most tokens of one of its sequences."""
        lines = inputs.host.num_lines
        self._kernels.gather(
            self.rows[:lines],
            self._query_indptr[: lines + 1],
            inputs.page_indptr,
            self._starts[:lines],
            self._given[: len(inputs.ids)],
            self._state.last_tokens,
            self._state.block_table,
            self._page_size,
            max_tokens,
            inputs.ids,
            inputs.positions,
            inputs.write,
            inputs.pages,
        )

    def clear(self) -> None:
        """Make every sequence padding."""
        self.rows.fill_(self._state.padding)
        for section in (self._starts, self.next_positions, self._shared_pages, self._given):
            section.zero_()
        self._last_page_len.fill_(1)
        for indptr in (self._page_indptr, self._query_indptr):
            torch.arange(len(indptr), out=indptr)

    def scratch(self, lines: int) -> HostPlan:
        """Return a plan of ``lines`` padding sequences, for captures."""
        upto = torch.arange(lines + 1, dtype=torch.int32)
        return HostPlan(lines, upto, upto.clone(), torch.ones(lines, dtype=torch.int32))
