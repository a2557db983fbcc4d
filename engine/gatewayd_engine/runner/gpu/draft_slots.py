"""Inputs of sequences with drafts on the device, padded to the same number of slots.

Slot 0 of a sequence is its last token, slot i its draft i - 1. A slot writes its keys and values
after those of the previous slot, whatever its depth in a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.step_inputs import HostPlan, SlotInputs, StepInputs
from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.transfers import pinned
from gatewayd_engine.state.step_batch import BatchDrafts, StepBatch

MOST_SLOTS = 64
"""Most slots of a sequence: the number of bits of an ancestor mask."""


class SlotRows(Protocol):
    """Batch rows on a device, such as ``DeviceRows``.

    Attributes:
        padding: row of padding sequences.
        last_tokens: int32, shape ``[rows + 1]``.
        block_table: int32, shape ``[rows + 1, max_pages]``.
    """

    padding: int
    last_tokens: torch.Tensor
    block_table: torch.Tensor


class DraftLinesInput(NamedTuple):
    """Sequences of a step and their tokens, on the host.

    Attributes:
        rows: row of each sequence, possibly with repetitions, shape ``[n]``.
        starts: position of each sequence's first token, shape ``[n]``.
        counts: tokens of each, at least 1, shape ``[n]``.
        ids: token ids, sequence by sequence; -1 for the last token of the row.
        drafts: drafts among the tokens; None if each token follows the previous one.
        reach: context length that each sequence may reach before the next upload, at least
            ``starts + counts``, shape ``[n]``; None for exactly that.
    """

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    ids: NDArray[np.int64]
    drafts: BatchDrafts | None = None
    reach: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, batch: StepBatch) -> DraftLinesInput:
        """Make the input of a batch in which all sequences decode."""
        ids = batch.ids
        if batch.unknown is not None:
            ids = ids.copy()
            ids[batch.last[batch.unknown]] = -1
        return cls(batch.rows, batch.starts, batch.counts, ids, batch.drafts)


class DraftSlotInputs:
    """Persistent input tensors of sequences with drafts, and their construction.

    Args:
        state: batch rows on the device.
        kernels: kernels of the device.
        page_size: tokens per page.
        scratch: page that belongs to no sequence.
        max_lines: most sequences of a step.
        max_slots: most slots of a step.
    """

    def __init__(
        self,
        state: SlotRows,
        kernels: Kernels,
        page_size: int,
        scratch: int,
        max_lines: int,
        max_slots: int,
    ) -> None:
        self._state = state
        self._kernels = kernels
        self._page_size = page_size
        self._scratch = scratch
        device = state.last_tokens.device
        size = aligned(_sections(max_lines, max_slots))[-1]
        # Contiguous, so that a step needs a single upload; ancestors first, for their alignment.
        self._header = torch.zeros(size, dtype=torch.int32, device=device)
        # An even number of int64 per row keeps the second and third row aligned to 16 bytes.
        self._tokens = torch.zeros((3, max_slots + max_slots % 2), dtype=torch.int64, device=device)
        max_pages = max_lines * state.block_table.shape[1]
        self._pages = torch.zeros(max_pages, dtype=torch.int32, device=device)

    def inputs(self, lines: int, width: int) -> SlotInputs:
        """Return the tensors of ``lines`` sequences of ``width`` slots; ``fill`` writes to them."""
        sizes = _sections(lines, lines * width)
        ancestors, rows, counts, starts, page_indptr, last_page_len, given, depths = (
            self._header[begin : begin + size]
            for begin, size in zip(aligned(sizes), sizes, strict=False)
        )
        ids, positions, write = self._tokens[:, : lines * width]
        upto = torch.arange(lines + 1, dtype=torch.int32)
        host = HostPlan(0, upto * width, upto, torch.ones(lines, dtype=torch.int32))
        return SlotInputs(
            step=StepInputs(ids, positions, write, page_indptr, self._pages, last_page_len, host),
            rows=rows,
            counts=counts,
            starts=starts,
            given=given,
            depths=depths,
            ancestors=ancestors.view(torch.int64),
            width=width,
        )

    def upload(self, batch: DraftLinesInput, lines: int, width: int) -> None:
        """Upload sequences.

        Args:
            batch: sequences of at most ``width`` tokens each.
            lines: number of sequences, including padding.
            width: slots of each sequence.
        """
        n, page_size = len(batch.rows), self._page_size
        sizes = _sections(lines, lines * width)
        begins = aligned(sizes)
        # Sections are packed for each size and width: a capture has views of its own into the
        # header.
        host = np.zeros(begins[-1], np.int32)
        ancestors, rows, counts, starts, page_indptr, last_page_len, given, depths = (
            host[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)
        )
        rows[:n], rows[n:] = batch.rows, self._state.padding
        counts[:n], counts[n:] = batch.counts, 1
        starts[:n] = batch.starts
        lengths = batch.starts + batch.counts
        # Pages that later steps will write are listed now: those steps upload nothing.
        num_pages = -(-(lengths if batch.reach is None else batch.reach) // page_size)
        np.cumsum(num_pages, out=page_indptr[1 : n + 1])
        # A padding sequence has one page, the scratch page.
        page_indptr[n + 1 :] = page_indptr[n] + np.arange(1, lines - n + 1)
        # Relative to the last listed page, so it is not positive while ``reach`` is pages ahead.
        # Kernels compute lengths as ``(pages - 1) * page_size + last_page_len``, which stays
        # correct.
        last_page_len[:n], last_page_len[n:] = lengths - (num_pages - 1) * page_size, 1
        own = np.arange(width) < batch.counts[:, None]
        given.reshape(lines, width)[:n][own] = batch.ids
        in_order = np.arange(width)
        depths.reshape(lines, width)[:] = in_order
        seen = ancestors.view(np.uint64).reshape(lines, width)
        # Of a chain, slot i sees slots 0 to i. For slot 63 the shift overflows to 0, and
        # subtracting 1 wraps around to all 64 bits.
        seen[:] = (np.uint64(2) << in_order.astype(np.uint64)) - np.uint64(1)
        drafts = batch.drafts
        if drafts is not None and drafts.parents is not None:
            # Other sequences of the step may have more drafts than any of these.
            drafts = drafts.cut(width - 1)
            sees, depth = drafts.lineage(drafts.tokens.shape[1] + 1)
            few = depth.shape[1]
            bits = np.where(sees, np.uint64(1) << np.arange(few, dtype=np.uint64), np.uint64(0))
            depths.reshape(lines, width)[:n, :few] = depth
            seen[:n, :few] = bits.sum(-1, dtype=np.uint64)
        sent = pinned(host, self._header.device)
        self._header[: len(host)].copy_(sent, non_blocking=True)

    def fill(self, inputs: SlotInputs) -> None:
        """Build the inputs of the uploaded sequences."""
        step = inputs.step
        self._kernels.slots(
            inputs.rows,
            inputs.counts,
            inputs.starts,
            step.page_indptr,
            inputs.given,
            inputs.depths,
            self._state.last_tokens,
            self._state.block_table,
            self._page_size,
            self._scratch,
            step.ids,
            step.positions,
            step.write,
            step.pages,
        )

    def clear(self, lines: int, width: int) -> None:
        """Make every sequence padding."""
        inputs = self.inputs(lines, width)
        inputs.rows.fill_(self._state.padding)
        inputs.counts.fill_(1)
        inputs.step.last_page_len.fill_(1)
        inputs.ancestors.fill_(-1)
        torch.arange(lines + 1, out=inputs.step.page_indptr)
        for section in (inputs.starts, inputs.given, inputs.depths):
            section.zero_()


def _sections(lines: int, slots: int) -> tuple[int, ...]:
    """Return the sizes of the uploaded sections, in int32."""
    return 2 * slots, lines, lines, lines, lines + 1, lines, slots, slots


def aligned(sizes: Sequence[int]) -> list[int]:
    """Return where sections of these sizes in int32 begin, and the end, aligned to 16 bytes.

    Triton compiles a kernel again for addresses with a different alignment.
    """
    return list(accumulate((-(-size // 4) * 4 for size in sizes), initial=0))


def flat_of(counts: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """Return the indices of sequences' tokens among padded slots, shape ``[num_tokens]``."""
    first = np.arange(len(counts)) * width - (np.cumsum(counts) - counts)
    at: NDArray[np.int64] = np.repeat(first, counts) + np.arange(int(counts.sum()))
    return at
