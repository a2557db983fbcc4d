"""Attention of a block of query rows to one KV head's pages, in vector code.

Scores of the whole contexts are written to scratch memory first, then their softmax, then the sums
of the values. Keys and values are copied to the stack, a span of slots at a time, for all rows of a
block, which are of one sequence, and all query heads of the KV head. What is computed for a row
depends on its own context alone, never on the batch, on blocks, on chunks or on threads, so it has
the same bits in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gatewayd_engine.kernels.cpu.elementary import exp, tanh
from gatewayd_engine.kernels.cpu.step_layout import StepShape
from gatewayd_engine.kernels.llvm.builder import F32, KernelFunction, Pointer, Value
from gatewayd_engine.kernels.llvm.processor import Processor
from gatewayd_engine.kernels.llvm.reductions import (
    lane_sum,
    largest_lane,
    sums_in_blocks,
    sums_of_blocks,
)

_AHEAD, _LINE = 8, 16
"""Slots that are read ahead of their use, as pages are scattered in memory; numbers of a line."""
_KEYS = 4
"""Keys whose scores a tile computes: their sums over lanes are added within 128 bits."""
_SPAN = 64
"""Slots whose keys, or values, are copied to the stack: tokens are kilobytes apart in a page, and
share few sets of the first cache."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a block.

    Attributes:
        query: after rotary, ``[group, head_dim]``.
        first, end: range of the KV slots that it attends to.
        visible: bytes, whether each slot from ``drafts`` on is attended to; null for all.
        drafts: slot of the first draft, or of the token before it.
        scores: scratch, ``[group, stride]``.
        out: like ``query``.
    """

    query: Pointer
    first: Value
    end: Value
    visible: Pointer
    drafts: Value
    scores: Pointer
    out: Pointer


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one sequence.

    Attributes:
        keys: of the KV head in the layer, of page 0.
        table: pages of the sequence.
        count: number of rows.
        row: emits the code that finds a row by its index.
        stride: numbers of scratch for a row's head, at least the context's rounded up to lanes,
            and as many lanes.
    """

    keys: Pointer
    table: Pointer
    count: Value
    row: Callable[[Value], Row]
    stride: Value


@dataclass(frozen=True, slots=True)
class _Span:
    """Successive slots, whose keys or values are adjacent in memory.

    Attributes:
        numbers: of the first slot.
        start, end: range of the slots.
    """

    numbers: Pointer
    start: Value
    end: Value


class PagedHeads:
    """Numbers in a token, half, layer and page of the pool; see ``KvPool`` for its shape."""

    def __init__(self, shape: StepShape) -> None:
        self.token = shape.num_kv_heads * shape.head_dim
        self.half = shape.page_size * self.token
        self.layer = 2 * self.half
        self.page = shape.num_layers * self.layer


class GroupAttention:
    """Emits the attention of the query heads of one KV head.

    Args:
        f: function under construction.
        shape: of the model.
        processor: that it is compiled for.
    """

    def __init__(self, f: KernelFunction, shape: StepShape, processor: Processor) -> None:
        self._f, self._shape, self._lanes = f, shape, processor.lanes
        self._pool = PagedHeads(shape)
        self._group = shape.num_heads // shape.num_kv_heads
        registers = processor.registers
        # Registers hold the sums of heads times keys, a part of each query, and one of a key.
        most = (registers - 1) // (_KEYS + 1)
        tiles = -(-self._group // most)
        self._heads = _evenly(self._group, tiles)
        # Likewise: the sums of heads times parts, a weight of each head, and a part of a value.
        parts = shape.head_dim // self._lanes
        fit = max(1, (registers - 1 - self._heads[0]) // self._heads[0])
        self._parts = _evenly(parts, -(-parts // fit))

    def attend(self, block: Block) -> None:
        """Attend to the contexts of a block's rows."""
        f = self._f
        tile, slots = f.scratch(F32, _SPAN * self._shape.head_dim), self._bounds(block)
        with self._each_span(block, slots, 0, tile) as keys, f.loop(0, block.count) as i:
            self._write_scores(block.row(i), keys, block.stride)
        with f.loop(0, block.count) as i:
            self._weigh(block.row(i), block.stride)
        with (
            self._each_span(block, slots, self._pool.half, tile) as values,
            f.loop(0, block.count) as i,
        ):
            self._add_values(block.row(i), values, block.stride)
        with f.loop(0, block.count) as i:
            self._normalise(block.row(i), block.stride)

    @contextmanager
    def _each_span(
        self, block: Block, slots: tuple[Value, Value], half: int, tile: Pointer
    ) -> Iterator[_Span]:
        """Emit a loop over the slots of a block, whose keys or values it copies to ``tile``."""
        f = self._f
        first, end = slots
        with f.loop(self._begin(first), end, _SPAN) as start:
            span = _Span(tile, start, f.least(start + _SPAN, end))
            self._copy(block, half, span)
            yield span

    def _begin(self, first: Value) -> Value:
        """Return the slot that scores begin at: a window's vectors are those of any other step."""
        return first // self._lanes * self._lanes

    def _bounds(self, block: Block) -> tuple[Value, Value]:
        """Return the range of slots that a block's rows attend to."""
        f, row = self._f, block.row(self._f.index(0))
        first, end = f.variable(row.first), f.variable(row.end)
        with f.loop(1, block.count) as i:
            row = block.row(i)
            first.set(f.least(first.get(), row.first))
            end.set(f.most(end.get(), row.end))
        return first.get(), end.get()

    def _copy(self, block: Block, half: int, span: _Span) -> None:
        """Copy the keys or values of a span."""
        f, shape = self._f, self._shape
        size, dim = shape.page_size, shape.head_dim

        def numbers(slot: Value) -> Pointer:
            place = block.table[slot // size] * self._pool.page + slot % size * self._pool.token
            return block.keys + (place + half)

        with f.loop(span.start, span.end) as slot:
            later = numbers(f.least(slot + _AHEAD, span.end - 1))
            for at in range(0, dim, _LINE):
                f.prefetch(later + at)
            source, copy = numbers(slot), span.numbers + (slot - span.start) * dim
            for at in range(0, dim, self._lanes):
                copy.store(source.vector(self._lanes, at), at)

    def _write_scores(self, row: Row, span: _Span, stride: Value) -> None:
        """Write a row's scores of the keys of a span."""
        f, dim = self._f, self._shape.head_dim
        first = f.most(self._begin(row.first), span.start)
        with f.loop(first, f.least(row.end, span.end), self._lanes) as slot:
            keys = span.numbers + (slot - span.start) * dim
            self._write_vector(row, keys, slot, stride)

    def _write_vector(self, row: Row, keys: Pointer, slot: Value, stride: Value) -> None:
        """Write the scores of a vector of slots."""
        f, shape, lanes = self._f, self._shape, self._lanes
        slots = f.splat(slot, lanes) + f.numbers(range(lanes))
        seen = (slots < f.splat(row.end, lanes)) & (slots >= f.splat(row.first, lanes))
        worst = f.floats(lanes, float("-inf"))
        first = 0
        for count in self._heads:
            heads = range(first, first + count)
            quads = [
                self._dots(row.query, keys + at * shape.head_dim, heads)
                for at in range(0, lanes, _KEYS)
            ]
            for i, head in enumerate(heads):
                made = sums_of_blocks(f, [quad[i] for quad in quads]) * shape.scale
                if shape.softcap is not None:
                    made = tanh(f, made * (1.0 / shape.softcap)) * shape.softcap
                row.scores.store(f.choose(seen, made, worst), slot + stride * head)
            first += count

    def _dots(self, query: Pointer, keys: Pointer, heads: range) -> list[Value]:
        """Return, for each head, the products with four keys, still to be added over blocks."""
        f, dim = self._f, self._shape.head_dim
        sums = [[f.zeros(self._lanes) for _ in range(_KEYS)] for _ in heads]
        for at in range(0, dim, self._lanes):
            parts = [query.vector(self._lanes, head * dim + at) for head in heads]
            for i in range(_KEYS):
                key = keys.vector(self._lanes, i * dim + at)
                for own, part in zip(sums, parts, strict=True):
                    own[i] = f.fma(part, key, own[i])
        return [sums_in_blocks(f, own) for own in sums]

    def _weigh(self, row: Row, stride: Value) -> None:
        """Replace a row's scores by their exponentials, and begin its sums."""
        f, lanes = self._f, self._lanes
        begin = self._begin(row.first)
        with f.loop(0, self._group) as head:
            scores = row.scores + head * stride
            with f.when(row.visible.is_set()):
                _mask_tree(f, row, begin, scores)
            total = _softmax(f, lanes, scores, begin, row.end)
            # Where nothing follows the last slot: its weight is in its own vector.
            scores[row.end + (lanes - 1)] = f.constant(F32, 1.0) / total
        with f.loop(0, self._group * self._shape.head_dim, lanes) as at:
            row.out.store(f.zeros(lanes), at)

    def _add_values(self, row: Row, span: _Span, stride: Value) -> None:
        """Add the weighted values of a span to a row's sums."""
        f, lanes, dim = self._f, self._lanes, self._shape.head_dim
        begin, end = f.most(row.first, span.start), f.least(row.end, span.end)
        first = 0
        for count in self._heads:
            heads = range(first, first + count)
            part = 0
            for width in self._parts:
                parts = [part + i * lanes for i in range(width)]
                sums = [
                    [f.variable(row.out.vector(lanes, head * dim + at)) for at in parts]
                    for head in heads
                ]
                with f.loop(begin, end) as slot:
                    values = span.numbers + (slot - span.start) * dim
                    weights = [f.splat(row.scores[slot + stride * head], lanes) for head in heads]
                    for i, at in enumerate(parts):
                        value = values.vector(lanes, at)
                        for own, weight in zip(sums, weights, strict=True):
                            own[i].set(f.fma(weight, value, own[i].get()))
                for head, own in zip(heads, sums, strict=True):
                    for at, total in zip(parts, own, strict=True):
                        row.out.store(total.get(), head * dim + at)
                part += width * lanes
            first += count

    def _normalise(self, row: Row, stride: Value) -> None:
        """Divide a row's sums by those of its weights."""
        f, lanes, dim = self._f, self._lanes, self._shape.head_dim
        with f.loop(0, self._group) as head:
            factor = f.splat(row.scores[row.end + (lanes - 1) + stride * head], lanes)
            own = row.out + head * dim
            with f.loop(0, dim, lanes) as at:
                own.store(own.vector(lanes, at) * factor, at)


def _evenly(count: int, parts: int) -> list[int]:
    """Split a number into parts of nearly the same size, the larger ones first."""
    return [count // parts + (i < count % parts) for i in range(parts)]


def _mask_tree(f: KernelFunction, row: Row, begin: Value, scores: Pointer) -> None:
    """Mask the drafts of other branches of a tree."""
    first = f.most(row.drafts, begin)
    with f.loop(first, row.end) as slot, f.when(row.visible[slot - row.drafts].equals(0)):
        scores[slot] = f.constant(F32, float("-inf"))


def _softmax(f: KernelFunction, lanes: int, row: Pointer, begin: Value, end: Value) -> Value:
    """Replace scores by their exponentials, and return the sum of those."""
    top = f.variable(f.floats(lanes, float("-inf")))
    with f.loop(begin, end, lanes) as at:
        made = row.vector(lanes, at)
        # Not by comparison alone: NaN must reach the result, by which the request fails.
        top.set(f.choose(made < top.get(), top.get(), made))
    largest = f.splat(largest_lane(f, top.get()), lanes)
    total = f.variable(f.zeros(lanes))
    with f.loop(begin, end, lanes) as at:
        made = exp(f, row.vector(lanes, at) - largest)
        row.store(made, at)
        total.set(total.get() + made)
    return lane_sum(f, total.get())
