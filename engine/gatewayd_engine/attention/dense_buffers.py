"""Buffers of dense context copies, which grow with their number of rows within a memory limit."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gatewayd_engine.attention.shared_prefix import PrefixKey
from gatewayd_engine.kv.pool import KvPool, zeros

_FIRST_LINES = 4


class Buffer:
    """Contexts of up to ``capacity`` tokens, one per row, without unused rows in between.

    Attributes:
        capacity: tokens per row.
        num_lines: number of rows.
        kv: keys and values, shape ``[layers, parts, rows, kv_heads, capacity, head_dim]``: the data
            of one head is contiguous, and all keys of a layer are one batch of matrices.
        rows: view by layer for writing tokens, shape ``[.., head_dim]``.
        by_head: view for reading, shape ``[layers, parts, rows * kv_heads, capacity,
            head_dim]``.
        owners: sequence of each row.
    """

    __slots__ = ("by_head", "capacity", "kv", "num_lines", "owners", "rows")

    def __init__(self, kv: torch.Tensor) -> None:
        self.capacity = kv.shape[4]
        self.owners: list[int] = []
        self.set_storage(kv)

    def set_storage(self, kv: torch.Tensor) -> None:
        """Use ``kv`` as the storage of the contexts."""
        self.kv = kv
        self.num_lines = kv.shape[2]
        self.rows = [layer.view(-1, kv.shape[-1]) for layer in kv]
        self.by_head = kv.flatten(2, 3)


class Buffers:
    """Buffers by prefix and capacity; unused ones are retained for reuse.

    Args:
        pool: KV pool that determines the shape of a token.
        max_lines: most rows of a buffer.
        max_bytes: memory for all buffers.
    """

    def __init__(self, pool: KvPool, max_lines: int, max_bytes: int) -> None:
        _, layers, parts, _, kv_heads, _ = pool.data.shape
        dim = pool.head_dim
        # A pool with a codec is decoded once into the copies, and not in every step.
        self._dtype, self._device = pool.dtype, pool.data.device
        self._shape = (layers, parts, kv_heads, dim)
        self._max_lines = max_lines
        self._spare_tokens = max_bytes // (layers * parts * kv_heads * dim * pool.dtype.itemsize)
        self._used: dict[tuple[PrefixKey | None, int], Buffer] = {}
        self._idle: list[Buffer] = []

    def in_use(self) -> Iterator[tuple[PrefixKey | None, Buffer]]:
        """Yield buffers with contexts, and the prefix before these, largest capacity first."""
        for (prefix, _), buffer in sorted(self._used.items(), key=lambda item: -item[0][1]):
            yield prefix, buffer

    def reserve(self, num_tokens: int) -> bool:
        """Reserve memory for ``num_tokens`` tokens; return whether there was enough."""
        # Idle buffers are freed when their memory is needed, not before.
        while self._spare_tokens < num_tokens and self._idle:
            buffer = self._idle.pop(0)
            self.release(buffer.num_lines * buffer.capacity)
        if self._spare_tokens < num_tokens:
            return False
        self._spare_tokens -= num_tokens
        return True

    def release(self, num_tokens: int) -> None:
        """Release the memory of ``num_tokens`` tokens."""
        self._spare_tokens += num_tokens

    def find_free(self, prefix: PrefixKey | None, capacity: int) -> Buffer | None:
        """Return a buffer with a free row, allocating as needed; None if there is no memory."""
        buffer = self._used.get((prefix, capacity)) or self._start(capacity)
        if buffer is None or (len(buffer.owners) == buffer.num_lines and not self._grow(buffer)):
            return None
        self._used[prefix, capacity] = buffer
        return buffer

    def release_empty(self) -> None:
        """Mark buffers without contexts as available for reuse."""
        for key, buffer in list(self._used.items()):
            if not buffer.owners:
                self._idle.append(self._used.pop(key))

    def zero_all(self) -> None:
        """Zero the contexts of all buffers, and mark all as available."""
        for buffer in self._used.values():
            buffer.kv[:, :, : len(buffer.owners)] = 0
            buffer.owners.clear()
        self.release_empty()

    def _start(self, capacity: int) -> Buffer | None:
        for i, buffer in enumerate(self._idle):
            if buffer.capacity == capacity:
                # Stale numbers of earlier contexts are finite, so masks suppress them.
                return self._idle.pop(i)
        lines = min(_FIRST_LINES, self._max_lines)
        return Buffer(self._make(lines, capacity)) if self.reserve(lines * capacity) else None

    def _grow(self, buffer: Buffer) -> bool:
        lines = min(2 * buffer.num_lines, self._max_lines)
        more = lines - buffer.num_lines
        if not more or not self.reserve(more * buffer.capacity):
            return False
        kv = self._make(lines, buffer.capacity)
        kv[:, :, : buffer.num_lines] = buffer.kv
        buffer.set_storage(kv)
        return True

    def _make(self, lines: int, capacity: int) -> torch.Tensor:
        layers, parts, heads, dim = self._shape
        # Zeroed, as a mask over the positions after a row's tokens would not suppress NaN.
        return zeros((layers, parts, lines, heads, capacity, dim), self._dtype, self._device)
