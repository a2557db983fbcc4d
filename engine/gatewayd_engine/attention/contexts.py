"""Dense copies of the contexts that decode, kept from step to step.

Pages are right for sharing and for memory, but a batched matrix product wants the keys of its
sequences side by side; gathering them anew costs a CPU more than the attention itself. So the
contexts of decoding sequences are kept dense as well: a step appends one token to each, and
pages are gathered only when a sequence starts to decode or outgrows its buffer.

The pool stays the truth. What a copy holds follows from the sequence and the position alone
(a page copied on write has the same content), so a copy is valid as long as the same sequence
continues where the copy ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.batch import StepBatch
from gatewayd_engine.kv.pool import KvPool, zeros

_SMALLEST = 128


class Buffer:
    """Contexts of up to ``capacity`` tokens, one per line, without gaps.

    Attributes:
        capacity: tokens per line.
        num_lines: lines there is room for.
        kv: keys and values, shape ``[layers, 2, lines, kv_heads, capacity, head_dim]``: what one
            head reads lies in one piece, and all keys of a layer are one batch of matrices.
        rows: the same by layer, for writing tokens, shape ``[.., head_dim]``.
        keys, values: the same by layer, shape ``[lines * kv_heads, capacity, head_dim]``.
        owners: the sequence of each line.
    """

    __slots__ = ("capacity", "keys", "kv", "num_lines", "owners", "rows", "values")

    def __init__(self, capacity: int, kv: torch.Tensor) -> None:
        self.capacity = capacity
        self.num_lines = kv.shape[2]
        self.kv = kv
        # Taken once: in a step of one sequence, making views costs as much as the arithmetic.
        self.rows = [layer.view(-1, kv.shape[-1]) for layer in kv]
        self.keys = [layer[0].view(-1, *kv.shape[-2:]) for layer in kv]
        self.values = [layer[1].view(-1, *kv.shape[-2:]) for layer in kv]
        self.owners: list[int] = []


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sequence's copy is, and how many tokens it holds."""

    capacity: int
    line: int
    filled: int


class Contexts:
    """Buffers of doubling capacities.

    Args:
        pool: where the pages are.
        max_lines: most sequences that decode at once.
        max_bytes: memory for all buffers; sequences that find no room are left out.
    """

    def __init__(self, pool: KvPool, max_lines: int, max_bytes: int) -> None:
        self._pool = pool
        self._max_lines = max_lines
        _, layers, _, _, kv_heads, dim = pool.data.shape
        self._shape = (layers, 2, kv_heads, dim)
        token_bytes = layers * 2 * kv_heads * dim * pool.data.element_size()
        self._spare_tokens = max_bytes // token_bytes
        self.buffers: dict[int, Buffer] = {}
        self._places: dict[int, Place] = {}
        self._tainted: set[int] = set()
        self._owners = np.zeros(0, np.int64)
        self._starts = np.zeros(0, np.int64)
        self._limits = np.zeros(0, np.int64)
        self._order: list[tuple[Buffer, NDArray[np.int64]]] = []
        self._left_out = np.zeros(0, np.int64)

    def follow(
        self, batch: StepBatch
    ) -> tuple[list[tuple[Buffer, NDArray[np.int64]]], NDArray[np.int64]]:
        """Bring the copies to where the decoding sequences of a batch are.

        The step is expected to append its token to each copy at the sequence's position.

        Returns:
            For each buffer in use, the batch's line of each of its lines; and the batch's lines
            that have no copy.
        """
        owners = batch.sequences[: batch.num_single]
        starts = batch.starts[: batch.num_single]
        continues = (
            len(owners) == len(self._owners)
            and bool((owners == self._owners).all())
            and bool((starts == self._starts + 1).all())
            and bool((starts < self._limits).all())
        )
        if not continues:
            self._reconcile(batch, owners.tolist(), starts.tolist())
        self._owners, self._starts = owners, starts
        return self._order, self._left_out

    def taint(self, owner: int) -> None:
        """A sequence may have written NaN: blank its line before another one has it.

        Lines are read beyond their tokens under a mask, and a masked NaN is still one.
        """
        if owner in self._places:
            self._tainted.add(owner)

    def _reconcile(self, batch: StepBatch, owners: list[int], starts: list[int]) -> None:
        """Drop copies that are not wanted any more, make those that are missing."""
        # While all goes on as before, places are not updated: every copy grew with its step.
        if len(self._owners):
            for owner, start in zip(self._owners.tolist(), self._starts.tolist(), strict=True):
                place = self._places.get(owner)
                if place is not None:
                    self._places[owner] = Place(place.capacity, place.line, start + 1)
        wanted = dict(zip(owners, starts, strict=True))
        for owner, place in list(self._places.items()):
            if wanted.get(owner, place.capacity) >= place.capacity:
                self._drop(owner)
        left_out = []
        limits = np.full(len(owners), np.iinfo(np.int64).max)
        for i, owner in enumerate(owners):
            place = self._places.get(owner) or self._copy(batch, i, owner, starts[i])
            if place is None:
                left_out.append(i)
            else:
                limits[i] = place.capacity
        self._limits = limits
        self._left_out = np.array(left_out, np.int64)
        line_of = {owner: i for i, owner in enumerate(owners)}
        self._order = [
            (buffer, np.array([line_of[owner] for owner in buffer.owners], np.int64))
            for _, buffer in sorted(self.buffers.items(), reverse=True)
            if buffer.owners
        ]

    def _drop(self, owner: int) -> None:
        """Forget a copy; the last line of its buffer takes its place."""
        place = self._places.pop(owner)
        buffer = self.buffers[place.capacity]
        last = buffer.owners.pop()
        if owner in self._tainted:
            self._tainted.discard(owner)
            buffer.kv[:, :, place.line] = 0
        if last == owner:
            return
        moved = self._places[last]
        buffer.kv[:, :, place.line, :, : moved.filled] = buffer.kv[
            :, :, moved.line, :, : moved.filled
        ]
        buffer.owners[place.line] = last
        self._places[last] = Place(place.capacity, place.line, moved.filled)

    def _copy(self, batch: StepBatch, i: int, owner: int, start: int) -> Place | None:
        """Gather a sequence's pages into a new line; None if there is no room."""
        capacity = _SMALLEST
        while capacity <= start:
            capacity *= 2
        buffer = self.buffers.get(capacity) or self._make_buffer(capacity)
        if buffer is None or len(buffer.owners) == buffer.num_lines:
            return None
        line = len(buffer.owners)
        buffer.owners.append(owner)
        size = self._pool.page_size
        num_pages = -(-start // size)
        pages = torch.from_numpy(batch.block_table[i, :num_pages])
        held = self._pool.data.index_select(0, pages)  # [pages, layers, 2, size, heads, dim]
        by_head = held.permute(1, 2, 4, 0, 3, 5)  # [layers, 2, heads, pages, size, dim]
        if num_pages * size <= capacity:
            target = buffer.kv[:, :, line, :, : num_pages * size]
            torch.unflatten(target, 3, (num_pages, size)).copy_(by_head)
        else:
            buffer.kv[:, :, line, :, :start] = by_head.flatten(3, 4)[..., :start, :]
        place = self._places[owner] = Place(capacity, line, start)
        return place

    def _make_buffer(self, capacity: int) -> Buffer | None:
        lines = min(self._max_lines, self._spare_tokens // capacity)
        if not lines:
            return None
        self._spare_tokens -= lines * capacity
        layers, _, heads, dim = self._shape
        # Zeros: what is beyond a line's tokens is masked, and a masked NaN is still one.
        data = self._pool.data
        kv = zeros((layers, 2, lines, heads, capacity, dim), data.dtype, data.device)
        buffer = self.buffers[capacity] = Buffer(capacity, kv)
        return buffer
