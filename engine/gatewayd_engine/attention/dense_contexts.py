"""Dense copies of the contexts of decoding sequences, maintained between steps.

Pages suit sharing and memory management, but a batched matrix product needs the keys of its
sequences contiguous, and gathering them in every step costs a CPU more than attention itself. So
the contexts of decoding sequences are also stored densely: a step appends its tokens to each, and
pages are gathered only when a sequence starts to decode or outgrows its buffer. A shared prefix is
stored once (``shared_prefix``), and the sequences' copies start after it.

The pool remains authoritative. The content of a copy depends on the sequence and the position alone
(copy-on-write preserves content), so a copy is valid as long as the same sequence continues at its
end, or before it: rejected drafts are overwritten.
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
"""Least bytes of context that a step must save for a prefix to be stored separately, which pays for
the additional operations."""


class DensePrefix:
    """Dense copy of a prefix that several sequences share.

    Attributes:
        num_tokens: length of the prefix, whole pages.
        keys: by layer, transposed, shape ``[kv_heads, head_dim, num_tokens]``.
        values: by layer, shape ``[kv_heads, num_tokens, head_dim]``.
    """

    __slots__ = ("keys", "num_tokens", "values")

    def __init__(self, kv: torch.Tensor) -> None:
        self.num_tokens = kv.shape[3]
        self.keys = [layer[0].transpose(1, 2) for layer in kv]
        # The last part has the values, also where it is the only one.
        self.values = [layer[-1] for layer in kv]


@dataclass(frozen=True, slots=True)
class DensePlace:
    """Location of a sequence's copy, and the tokens that it and its prefix contain.

    Attributes:
        prefix: shared prefix before the copy, if any.
        buffer: buffer of the copy.
        line: row of the buffer.
        filled: tokens of the sequence in the copy and its prefix.
    """

    prefix: PrefixKey | None
    buffer: Buffer
    line: int
    filled: int


@dataclass(frozen=True, slots=True)
class DenseBatch:
    """Sequences with dense copies that attend together.

    Attributes:
        buffer: buffer of their contexts, one per row, without gaps.
        prefix: shared prefix before those contexts, if any.
        lines: index in the batch of each row of the buffer.
    """

    buffer: Buffer
    prefix: DensePrefix | None
    lines: NDArray[np.int64]


class Contexts:
    """Dense copies of all decoding sequences.

    Args:
        pool: KV pool.
        max_lines: most sequences that decode at once.
        max_bytes: memory for all copies; sequences that do not fit get none.
        shares: whether shared prefixes are stored separately.
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
        self._order: list[DenseBatch] = []
        self._left_out = np.zeros(0, np.int64)

    def update(self, batch: StepBatch) -> tuple[list[DenseBatch], NDArray[np.int64]]:
        """Update the copies to the decoding sequences of a batch.

        The step has to append its tokens to each copy at the sequence's position.

        Returns:
            Groups of sequences that attend together, and the sequences without a copy, by their
            indices in the batch.
        """
        owners = batch.sequences[: batch.num_decode]
        starts = batch.starts[: batch.num_decode]
        ends = starts + batch.counts[: batch.num_decode]
        # In most steps the same sequences continue: checked without a loop over them.
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

    def compact(
        self,
        sequences: NDArray[np.int64],
        sources: NDArray[np.int64],
        targets: NDArray[np.int64],
    ) -> None:
        """Move accepted tokens of draft trees to consecutive positions after a step.

        Args:
            sequences: sequence of each token, shape ``[n]``.
            sources: positions at which they were written, shape ``[n]``.
            targets: positions in the sequence, shape ``[n]``.
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
            # Indexing copies the sources first: moves may overlap.
            line[:, :, :, target] = line[:, :, :, source]

    def discard_copies(self) -> None:
        """Discard all copies, as the last step may have written non-finite numbers.

        Rows are read beyond their tokens under a mask, which does not suppress NaN, and a row that
        is moved takes it along. So all are zeroed, and gathered again from the pool.
        """
        self._places.clear()
        for prefix in self._prefixes.values():
            self._buffers.release(prefix.num_tokens)
        self._prefixes.clear()
        self._buffers.zero_all()
        self._owners = self._ends = self._limits = np.zeros(0, np.int64)
        # A step without decoding sequences counts as a continuation, so this must be consistent.
        self._order, self._left_out = [], np.zeros(0, np.int64)

    def _reconcile(self, batch: StepBatch, owners: list[int], ends: list[int]) -> None:
        """Discard copies that are no longer needed, and create missing ones."""
        # Steps that merely continue do not update ``filled``, though every copy grew.
        for owner, end in zip(self._owners.tolist(), self._ends.tolist(), strict=True):
            place = self._places.get(owner)
            if place is not None:
                self._places[owner] = DensePlace(place.prefix, place.buffer, place.line, end)
        # Prefixes first, as they decide which copies are still valid.
        keys = self._share(batch)
        wanted = {owner: (ends[i], keys[i]) for i, owner in enumerate(owners)}
        # Release before allocating: ended sequences, other prefixes, outgrown buffers.
        for owner, place in list(self._places.items()):
            end, key = wanted.get(owner, (0, None))
            if owner not in wanted or key != place.prefix or end > self._limit(place):
                self._drop(owner)
        self._buffers.release_empty()
        # After the copies that begin behind these prefixes, whose limits depend on them.
        for key in self._prefixes.keys() - set(keys):
            self._buffers.release(self._prefixes.pop(key).num_tokens)
        left_out: list[int] = []
        # Sequences without a copy cannot outgrow one.
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
            DenseBatch(
                buffer,
                None if key is None else self._prefixes[key],
                np.array([line_of[owner] for owner in buffer.owners], np.int64),
            )
            for key, buffer in self._buffers.in_use()
        ]

    def _share(self, batch: StepBatch) -> list[PrefixKey | None]:
        """Return the separately stored prefix of each decoding sequence, creating new ones."""
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
                # Without memory for the prefix, its sequences get whole copies.
                if not self._buffers.reserve(num_tokens):
                    continue
                self._prefixes[prefix.key] = DensePrefix(self._gather(pages).flatten(3, 4))
            for line in prefix.lines.tolist():
                keys[line] = prefix.key
        return keys

    def _limit(self, place: DensePlace) -> int:
        """Return the first position that does not fit in a copy."""
        before = 0 if place.prefix is None else self._prefixes[place.prefix].num_tokens
        return before + place.buffer.capacity

    def _drop(self, owner: int) -> None:
        """Discard a copy; the last row of its buffer is moved into its row."""
        place = self._places.pop(owner)
        buffer = place.buffer
        last = buffer.owners.pop()
        if last == owner:
            return
        moved = self._places[last]
        # ``filled`` includes a prefix, so this is an upper bound of the row's tokens.
        held = slice(min(moved.filled, buffer.capacity))
        buffer.kv[:, :, place.line, :, held] = buffer.kv[:, :, moved.line, :, held]
        buffer.owners[place.line] = last
        self._places[last] = DensePlace(moved.prefix, buffer, place.line, moved.filled)

    def _copy(
        self, batch: StepBatch, i: int, owner: int, key: PrefixKey | None
    ) -> DensePlace | None:
        """Gather a sequence's pages into a new row; return None if there is no memory."""
        skipped = 0 if key is None else key[0]
        size = self._pool.page_size
        start = int(batch.starts[i])
        count = start - skipped * size
        capacity = _SMALLEST
        # Doubled, so that a growing context is gathered again a logarithmic number of times.
        while capacity < count + int(batch.counts[i]):
            capacity *= 2
        buffer = self._buffers.find_free(key, capacity)
        if buffer is None:
            return None
        line = len(buffer.owners)
        buffer.owners.append(owner)
        num_pages = -(-count // size)
        by_head = self._gather(batch.block_table[i, skipped : skipped + num_pages])
        # Whole pages: numbers after the context are masked until they are overwritten.
        if num_pages * size <= capacity:
            target = buffer.kv[:, :, line, :, : num_pages * size]
            torch.unflatten(target, 3, (num_pages, size)).copy_(by_head)
        else:
            buffer.kv[:, :, line, :, :count] = by_head.flatten(3, 4)[..., :count, :]
        place = self._places[owner] = DensePlace(key, buffer, line, start)
        return place

    def _gather(self, pages: NDArray[np.int64]) -> torch.Tensor:
        """Gather pages by head, ``[layers, parts, kv_heads, pages, page_size, head_dim]``."""
        self._pool.transfers.wait()
        index = torch.from_numpy(np.ascontiguousarray(pages))
        found = self._pool.data.index_select(0, index)
        if self._pool.codec is not None:
            found = self._pool.codec.decode(found)
        return found.permute(1, 2, 4, 0, 3, 5)
