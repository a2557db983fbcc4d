"""Memory for dense copies of contexts: buffers that grow with their lines, within a limit."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gatewayd_engine.attention.shared_prefix import PrefixKey
from gatewayd_engine.kv.pool import KvPool, zeros

_FIRST_LINES = 4


class Buffer:
    """Contexts of up to ``capacity`` tokens, one per line, without gaps.

    Attributes:
        capacity: tokens per line.
        num_lines: lines there is room for.
        kv: keys and values, shape ``[layers, 2, lines, kv_heads, capacity, head_dim]``: what one
            head reads lies in one piece, and all keys of a layer are one batch of matrices.
        rows: the same by layer, for writing tokens, shape ``[.., head_dim]``.
        by_head: the same for reading, shape ``[layers, 2, lines * kv_heads, capacity, head_dim]``.
        owners: the sequence of each line.
    """

    __slots__ = ("by_head", "capacity", "kv", "num_lines", "owners", "rows")

    def __init__(self, kv: torch.Tensor) -> None:
        self.capacity = kv.shape[4]
        self.owners: list[int] = []
        self.hold(kv)

    def hold(self, kv: torch.Tensor) -> None:
        """Keep the contexts in this tensor from now on."""
        self.kv = kv
        self.num_lines = kv.shape[2]
        self.rows = [layer.view(-1, kv.shape[-1]) for layer in kv]
        self.by_head = kv.flatten(2, 3)


class Buffers:
    """Buffers by prefix and capacity; those that nobody uses are kept for the next one.

    Args:
        pool: says the shape of a token.
        max_lines: most lines of a buffer.
        max_bytes: memory for all.
    """

    def __init__(self, pool: KvPool, max_lines: int, max_bytes: int) -> None:
        _, layers, _, _, kv_heads, _ = pool.data.shape
        dim = pool.head_dim
        # Numbers, also of a pool that holds records: decoded once, and not in every step.
        self._dtype, self._device = pool.dtype, pool.data.device
        self._shape = (layers, 2, kv_heads, dim)
        self._max_lines = max_lines
        self._spare_tokens = max_bytes // (layers * 2 * kv_heads * dim * pool.dtype.itemsize)
        self._used: dict[tuple[PrefixKey | None, int], Buffer] = {}
        self._idle: list[Buffer] = []

    def in_use(self) -> Iterator[tuple[PrefixKey | None, Buffer]]:
        """Buffers that hold contexts, and the prefix that comes before them; longest first."""
        for (prefix, _), buffer in sorted(self._used.items(), key=lambda item: -item[0][1]):
            yield prefix, buffer

    def take(self, num_tokens: int) -> bool:
        """Reserve memory for so many tokens, or say that there is none."""
        while self._spare_tokens < num_tokens and self._idle:
            buffer = self._idle.pop(0)
            self.give_back(buffer.num_lines * buffer.capacity)
        if self._spare_tokens < num_tokens:
            return False
        self._spare_tokens -= num_tokens
        return True

    def give_back(self, num_tokens: int) -> None:
        """So many tokens' memory is free again."""
        self._spare_tokens += num_tokens

    def with_room(self, prefix: PrefixKey | None, capacity: int) -> Buffer | None:
        """A buffer with a free line, or None if there is no memory for one."""
        buffer = self._used.get((prefix, capacity)) or self._start(capacity)
        if buffer is None or (len(buffer.owners) == buffer.num_lines and not self._grow(buffer)):
            return None
        self._used[prefix, capacity] = buffer
        return buffer

    def release_empty(self) -> None:
        """Buffers without contexts may be used for others."""
        for key, buffer in list(self._used.items()):
            if not buffer.owners:
                self._idle.append(self._used.pop(key))

    def blank(self) -> None:
        """Zero the contexts of all buffers; none is in use then."""
        for buffer in self._used.values():
            buffer.kv[:, :, : len(buffer.owners)] = 0
            buffer.owners.clear()
        self.release_empty()

    def _start(self, capacity: int) -> Buffer | None:
        for i, buffer in enumerate(self._idle):
            if buffer.capacity == capacity:
                return self._idle.pop(i)
        lines = min(_FIRST_LINES, self._max_lines)
        return Buffer(self._make(lines, capacity)) if self.take(lines * capacity) else None

    def _grow(self, buffer: Buffer) -> bool:
        lines = min(2 * buffer.num_lines, self._max_lines)
        more = lines - buffer.num_lines
        if not more or not self.take(more * buffer.capacity):
            return False
        kv = self._make(lines, buffer.capacity)
        kv[:, :, : buffer.num_lines] = buffer.kv
        buffer.hold(kv)
        return True

    def _make(self, lines: int, capacity: int) -> torch.Tensor:
        layers, _, heads, dim = self._shape
        # Zeros: what is beyond a line's tokens is masked, and a masked NaN is still one.
        return zeros((layers, 2, lines, heads, capacity, dim), self._dtype, self._device)
