"""Plans how the sequences that compute one token attend together.

Their contexts come from dense copies (``contexts``), all lines of a buffer at once, or, where
those have no room, from the pages, in groups of similar length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.base import AttentionShape
from gatewayd_engine.attention.buffers import Buffer
from gatewayd_engine.attention.contexts import Contexts, Copied, Prefix
from gatewayd_engine.batch import StepBatch
from gatewayd_engine.kv.pool import KvPool


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences of the batch that compute one token and attend together.

    Attributes:
        lines: of the batch; None for all of them, in order.
        count: how many.
        length: the padded context, without the prefix.
        masks: per window, 0 where a line sees a position and -inf elsewhere,
            shape ``[count * kv_heads, 1, length]``; None where all see all.
        pages: their block tables, flat, shape ``[count * pages_each]``; unused with a copy.
        copy: their dense contexts, if they have them.
        prefix: what comes before those, if they share it.
        keys: of the copy, by layer, shape ``[count * kv_heads, head_dim, length]``.
        values: of the copy, by layer, shape ``[count * kv_heads, length, head_dim]``.
        write: where this step's tokens go in the copy, shape ``[count * 2 * kv_heads]``.
    """

    lines: torch.Tensor | None
    count: int
    length: int
    masks: dict[int, torch.Tensor | None]
    pages: torch.Tensor
    copy: Buffer | None
    prefix: Prefix | None
    keys: Sequence[torch.Tensor]
    values: Sequence[torch.Tensor]
    write: torch.Tensor


class Groups:
    """Makes the groups of each step.

    Args:
        shape: the model's attention.
        pool: where keys and values are.
        max_running: most sequences that decode at once.
        copy_bytes: memory for dense copies of their contexts; 0 for none.
    """

    def __init__(
        self, shape: AttentionShape, pool: KvPool, max_running: int, copy_bytes: int
    ) -> None:
        self._shape = shape
        self._page_size = pool.page_size
        self._dtype, self._device = pool.data.dtype, pool.data.device
        self._windows = sorted(set(shape.windows))
        # A window may end inside a prefix: such models read it line by line.
        self._contexts = Contexts(pool, max_running, copy_bytes, shares=not any(shape.windows))
        self._none = torch.empty(0, dtype=torch.int64)

    def forget(self) -> None:
        """Drop what is kept from earlier steps."""
        self._contexts.forget()

    def plan(self, batch: StepBatch) -> list[Group]:
        """The groups of one step."""
        placed, left_out = self._contexts.follow(batch)
        groups = [self._plan_copied(batch, copied) for copied in placed]
        # Lines come longest first; a new group where contexts halve keeps the padding below half.
        while len(left_out):
            lengths = batch.starts[left_out] + 1
            count = int(np.count_nonzero(lengths * 2 > lengths[0]))
            groups.append(self._plan_paged(batch, left_out[:count]))
            left_out = left_out[count:]
        return groups

    def _plan_copied(self, batch: StepBatch, copied: Copied) -> Group:
        buffer, prefix, lines = copied.buffer, copied.prefix, copied.lines
        now = batch.starts[lines][:, None]
        if prefix is not None:
            now = now - prefix.num_tokens
        heads = np.arange(now.size * self._shape.num_kv_heads).reshape(now.size, -1)
        at = heads * buffer.capacity + now
        half = buffer.num_lines * self._shape.num_kv_heads * buffer.capacity
        write = self._tensor(np.concatenate([at, at + half], 1).ravel())
        length, masks = self._masks(now, buffer.capacity)
        # For all layers at once: making views one by one costs as much as a small product.
        keys, values = buffer.by_head[:, :, : heads.size, :length].unbind(1)
        return Group(
            lines=self._lines(batch, lines),
            count=now.size,
            length=length,
            masks=masks,
            pages=self._none,
            copy=buffer,
            prefix=prefix,
            keys=keys.transpose(2, 3).unbind(),
            values=values.unbind(),
            write=write,
        )

    def _plan_paged(self, batch: StepBatch, lines: NDArray[np.int64]) -> Group:
        now = batch.starts[lines][:, None]
        num_pages = int(now.max()) // self._page_size + 1
        table = batch.block_table[lines, :num_pages]
        # Beyond a line's own pages its block table holds whatever was there before: read
        # its first page instead, which is masked anyway.
        own = np.arange(num_pages) * self._page_size <= now
        table = np.where(own, table, table[:, :1])
        length, masks = self._masks(now, num_pages * self._page_size)
        return Group(
            lines=self._lines(batch, lines),
            count=now.size,
            length=length,
            masks=masks,
            pages=self._tensor(table.ravel() * (self._shape.num_layers * 2)),
            copy=None,
            prefix=None,
            keys=(),
            values=(),
            write=self._none,
        )

    def _masks(
        self, now: NDArray[np.int64], most: int
    ) -> tuple[int, dict[int, torch.Tensor | None]]:
        """The padded context of lines at these positions, and what each sees of it."""
        longest = int(now.max()) + 1
        # Contexts of one length, a single sequence above all, need no mask.
        is_even = bool((now == longest - 1).all())
        length = longest if is_even else min(-(-longest // self._page_size) * self._page_size, most)
        at = np.arange(length)
        masks: dict[int, torch.Tensor | None] = {}
        for window in self._windows:
            if is_even and not 0 < window < longest:
                masks[window] = None
                continue
            seen = at <= now
            if window:
                seen &= at > now - window
            mask = self._tensor(np.where(seen, np.float32(0), np.float32(-np.inf)))
            mask = mask.to(self._dtype).unsqueeze(1)
            masks[window] = mask.repeat_interleave(self._shape.num_kv_heads, 0)
        return length, masks

    def _lines(self, batch: StepBatch, lines: NDArray[np.int64]) -> torch.Tensor | None:
        count = len(lines)
        in_order = count == batch.num_single and bool((lines == np.arange(count)).all())
        return None if in_order else self._tensor(lines)

    def _tensor(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
