"""Dense copies of the contexts that decode, kept from step to step.

Pages are right for sharing and for memory, but a batched matrix product wants the keys of its
sequences side by side; gathering them anew costs a CPU more than the attention itself. So the
contexts of decoding sequences are kept dense as well: a step appends its tokens to each, and
pages are gathered only when a sequence starts to decode or outgrows its buffer. What several of
them begin with is kept once (``prefixes``), and their lines hold what follows.

The pool stays the truth. What a copy holds follows from the sequence and the position alone
(a page copied on write has the same content), so a copy is valid as long as the same sequence
continues where the copy ends, or before that: drafts that were not kept are written over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.dense_buffers import Buffer, Buffers
from gatewayd_engine.attention.shared_prefix import PrefixKey, find_shared
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.state.step_batch import StepBatch

_SMALLEST = 128
_LEAST_GAIN = 2 << 20
"""Bytes of context that a step must read less for a prefix to be kept apart: the few operations
more that it takes cost as much."""


class DensePrefix:
    """What several sequences begin with.

    Attributes:
        num_tokens: its length, whole pages.
        keys: by layer, transposed, shape ``[kv_heads, head_dim, num_tokens]``.
        values: by layer, shape ``[kv_heads, num_tokens, head_dim]``.
    """

    __slots__ = ("keys", "num_tokens", "values")

    def __init__(self, kv: torch.Tensor) -> None:
        self.num_tokens = kv.shape[3]
        self.keys = [layer[0].transpose(1, 2) for layer in kv]
        self.values = [layer[1] for layer in kv]


@dataclass(frozen=True, slots=True)
class DensePlace:
    """Where a sequence's copy is, and how much of the sequence it and its prefix hold."""

    prefix: PrefixKey | None
    buffer: Buffer
    line: int
    filled: int


@dataclass(frozen=True, slots=True)
class Copied:
    """Sequences that attend together.

    Attributes:
        buffer: holds their contexts, one per line, without gaps.
        prefix: comes before what the buffer holds.
        lines: the batch's line of each line of the buffer.
    """

    buffer: Buffer
    prefix: DensePrefix | None
    lines: NDArray[np.int64]


class Contexts:
    """The copies of all sequences that decode.

    Args:
        pool: where the pages are.
        max_lines: most sequences that decode at once.
        max_bytes: memory for all copies; sequences that find no room are left out.
        shares: whether prefixes are kept apart.
    """

    def __init__(self, pool: KvPool, max_lines: int, max_bytes: int, shares: bool) -> None:
        self._pool = pool
        self._buffers = Buffers(pool, max_lines, max_bytes)
        self._least_gain = -(-_LEAST_GAIN // pool.decoded_bytes) if shares else None
        self._prefixes: dict[PrefixKey, DensePrefix] = {}
        self._places: dict[int, DensePlace] = {}
        self._owners = np.zeros(0, np.int64)
        self._ends = np.zeros(0, np.int64)
        self._limits = np.zeros(0, np.int64)
        self._order: list[Copied] = []
        self._left_out = np.zeros(0, np.int64)

    def follow(self, batch: StepBatch) -> tuple[list[Copied], NDArray[np.int64]]:
        """Bring the copies to where the decoding sequences of a batch are.

        The step is expected to append its tokens to each copy at the sequence's position.

        Returns:
            Which sequences attend together, and the batch's lines that have no copy.
        """
        owners = batch.sequences[: batch.num_decode]
        starts = batch.starts[: batch.num_decode]
        ends = starts + batch.counts[: batch.num_decode]
        continues = (
            len(owners) == len(self._owners)
            and bool((owners == self._owners).all())
            and bool((starts <= self._ends).all())
            and bool((ends <= self._limits).all())
        )
        if not continues:
            self._reconcile(batch, owners.tolist(), ends.tolist())
        self._owners, self._ends = owners, ends
        return self._order, self._left_out

    def keep(
        self,
        sequences: NDArray[np.int64],
        sources: NDArray[np.int64],
        targets: NDArray[np.int64],
    ) -> None:
        """Move tokens of the last step to where they belong: drafts of a tree that were kept.

        Args:
            sequences: whose they are, shape ``[n]``.
            sources: where they are, shape ``[n]``.
            targets: where they belong, shape ``[n]``.
        """
        for sequence in np.unique(sequences).tolist():
            place = self._places.get(sequence)
            if place is None:
                continue
            own = sequences == sequence
            before = 0 if place.prefix is None else self._prefixes[place.prefix].num_tokens
            source = torch.from_numpy(sources[own] - before)
            target = torch.from_numpy(targets[own] - before)
            line = place.buffer.kv[:, :, place.line]
            line[:, :, :, target] = line[:, :, :, source]

    def forget(self) -> None:
        """Drop every copy: the last step may have written what is not finite.

        Lines are read beyond their tokens under a mask, and a masked NaN is still one; a line
        that moves takes it elsewhere. So all are blanked, and gathered again from the pool.
        """
        self._places.clear()
        for prefix in self._prefixes.values():
            self._buffers.give_back(prefix.num_tokens)
        self._prefixes.clear()
        self._buffers.blank()
        self._owners = self._ends = self._limits = np.zeros(0, np.int64)
        # A step in which nobody decodes goes on from here as it is.
        self._order, self._left_out = [], np.zeros(0, np.int64)

    def _reconcile(self, batch: StepBatch, owners: list[int], ends: list[int]) -> None:
        """Drop copies that are not wanted any more, make those that are missing."""
        # While all goes on as before, places are not updated: every copy grew with its step.
        for owner, end in zip(self._owners.tolist(), self._ends.tolist(), strict=True):
            place = self._places.get(owner)
            if place is not None:
                self._places[owner] = DensePlace(place.prefix, place.buffer, place.line, end)
        keys = self._share(batch)
        wanted = {owner: (ends[i], keys[i]) for i, owner in enumerate(owners)}
        for owner, place in list(self._places.items()):
            end, key = wanted.get(owner, (0, None))
            if owner not in wanted or key != place.prefix or end > self._limit(place):
                self._drop(owner)
        self._buffers.release_empty()
        for key in self._prefixes.keys() - set(keys):
            self._buffers.give_back(self._prefixes.pop(key).num_tokens)
        left_out: list[int] = []
        limits = np.full(len(owners), np.iinfo(np.int64).max)
        for i, owner in enumerate(owners):
            place = self._places.get(owner) or self._copy(batch, i, owner, keys[i])
            if place is None:
                left_out.append(i)
            else:
                limits[i] = self._limit(place)
        self._limits = limits
        self._left_out = np.array(left_out, np.int64)
        line_of = {owner: i for i, owner in enumerate(owners)}
        self._order = [
            Copied(
                buffer,
                None if key is None else self._prefixes[key],
                np.array([line_of[owner] for owner in buffer.owners], np.int64),
            )
            for key, buffer in self._buffers.in_use()
        ]

    def _share(self, batch: StepBatch) -> list[PrefixKey | None]:
        """The prefix of each decoding line, kept apart from its context."""
        keys: list[PrefixKey | None] = [None] * batch.num_decode
        if self._least_gain is None:
            return keys
        shared = find_shared(
            batch.block_table[: batch.num_decode],
            batch.starts[: batch.num_decode] // self._pool.page_size,
            self._least_gain,
            self._prefixes,
        )
        for prefix in shared:
            if prefix.key not in self._prefixes:
                pages = batch.block_table[prefix.lines[0], : prefix.key[0]]
                num_tokens = len(pages) * self._pool.page_size
                if not self._buffers.take(num_tokens):
                    continue
                self._prefixes[prefix.key] = DensePrefix(self._gather(pages).flatten(3, 4))
            for line in prefix.lines.tolist():
                keys[line] = prefix.key
        return keys

    def _limit(self, place: DensePlace) -> int:
        """The first position that does not fit any more."""
        before = 0 if place.prefix is None else self._prefixes[place.prefix].num_tokens
        return before + place.buffer.capacity

    def _drop(self, owner: int) -> None:
        """Forget a copy; the last line of its buffer takes its place."""
        place = self._places.pop(owner)
        buffer = place.buffer
        last = buffer.owners.pop()
        if last == owner:
            return
        moved = self._places[last]
        held = slice(min(moved.filled, buffer.capacity))
        buffer.kv[:, :, place.line, :, held] = buffer.kv[:, :, moved.line, :, held]
        buffer.owners[place.line] = last
        self._places[last] = DensePlace(moved.prefix, buffer, place.line, moved.filled)

    def _copy(
        self, batch: StepBatch, i: int, owner: int, key: PrefixKey | None
    ) -> DensePlace | None:
        """Gather a sequence's pages into a new line; None if there is no room."""
        skipped = 0 if key is None else key[0]
        size = self._pool.page_size
        start = int(batch.starts[i])
        count = start - skipped * size
        capacity = _SMALLEST
        while capacity < count + int(batch.counts[i]):
            capacity *= 2
        buffer = self._buffers.with_room(key, capacity)
        if buffer is None:
            return None
        line = len(buffer.owners)
        buffer.owners.append(owner)
        num_pages = -(-count // size)
        by_head = self._gather(batch.block_table[i, skipped : skipped + num_pages])
        if num_pages * size <= capacity:
            target = buffer.kv[:, :, line, :, : num_pages * size]
            torch.unflatten(target, 3, (num_pages, size)).copy_(by_head)
        else:
            buffer.kv[:, :, line, :, :count] = by_head.flatten(3, 4)[..., :count, :]
        place = self._places[owner] = DensePlace(key, buffer, line, start)
        return place

    def _gather(self, pages: NDArray[np.int64]) -> torch.Tensor:
        """Pages by head, shape ``[layers, 2, kv_heads, pages, page_size, head_dim]``."""
        self._pool.arrivals.wait()
        index = torch.from_numpy(np.ascontiguousarray(pages))
        found = self._pool.data.index_select(0, index)
        if self._pool.codec is not None:
            found = self._pool.codec.decode(found)
        return found.permute(1, 2, 4, 0, 3, 5)
