"""Attention of one query row to one KV head's pages, in vector code.

Scores of the whole context are written to scratch memory first, then their softmax, then the sum
of the values; a key or value that is loaded serves several query heads. All loops depend on the
row's own context alone, never on the batch, on chunks or on threads, so a row has the same bits in
every step that computes it.
"""

from __future__ import annotations

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

_LINE = 16
"""Numbers of a cache line."""
_AHEAD = 8
"""Slots from a value to the one that is fetched meanwhile: pages are scattered in memory, and
processors foresee reads only within 4 KiB."""
_KEYS = 4
"""Keys whose scores a tile computes: their sums over lanes are added within 128 bits."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a row attends to.

    Attributes:
        keys: keys of the KV head in the layer, of page 0.
        table: pages of the row's sequence.
        first, end: range of KV slots.
        visible: bytes, whether each slot from ``drafts`` on is attended to; null for all.
        drafts: slot of the first draft, or of the token before it.
    """

    keys: Pointer
    table: Pointer
    first: Value
    end: Value
    visible: Pointer
    drafts: Value


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

    def attend(
        self, query: Pointer, context: Context, scores: Pointer, stride: Value, out: Pointer
    ) -> None:
        """Attend to a context.

        Args:
            query: after rotary, ``[group, head_dim]``.
            context: what it attends to.
            scores: scratch, ``[group, stride]``.
            stride: numbers of scratch for a head, at least the context's rounded up to lanes.
            out: like ``query``.
        """
        f, lanes = self._f, self._lanes
        # From a multiple of the lanes on, so that a window's vectors are those of any other step.
        begin = context.first // lanes * lanes
        with f.loop(begin, context.end, lanes) as slot:
            self._write_scores(query, context, slot, scores, stride)
        with f.loop(0, self._group) as head:
            row = scores + head * stride
            with f.when(context.visible.is_set()):
                _mask_tree(f, context, begin, row)
            total = _softmax(f, lanes, row, begin, context.end)
            # Where nothing follows the last slot: its weight is in its own vector.
            row[context.end + (lanes - 1)] = f.constant(F32, 1.0) / total
        self._sum_values(context, scores, stride, out)

    def _page(self, context: Context, slot: Value) -> Pointer:
        """Return the keys at a slot."""
        size = self._shape.page_size
        page = context.table[slot // size]
        return context.keys + page * self._pool.page + slot % size * self._pool.token

    def _write_scores(
        self, query: Pointer, context: Context, slot: Value, scores: Pointer, stride: Value
    ) -> None:
        """Write the scores of a vector of slots, which are of one page."""
        f, shape, lanes = self._f, self._shape, self._lanes
        keys = self._page(context, slot)
        following = self._page(context, f.least(slot + lanes, context.end - 1))
        for i in range(lanes):
            for at in range(0, shape.head_dim, _LINE):
                f.prefetch(following + (i * self._pool.token + at))
        slots = f.splat(slot, lanes) + f.numbers(range(lanes))
        seen = (slots < f.splat(context.end, lanes)) & (slots >= f.splat(context.first, lanes))
        worst = f.floats(lanes, float("-inf"))
        first = 0
        for count in self._heads:
            heads = range(first, first + count)
            quads = [
                self._dots(query, keys + at * self._pool.token, heads)
                for at in range(0, lanes, _KEYS)
            ]
            for i, head in enumerate(heads):
                made = sums_of_blocks(f, [quad[i] for quad in quads]) * shape.scale
                if shape.softcap is not None:
                    made = tanh(f, made * (1.0 / shape.softcap)) * shape.softcap
                scores.store(f.choose(seen, made, worst), slot + stride * head)
            first += count

    def _dots(self, query: Pointer, keys: Pointer, heads: range) -> list[Value]:
        """Return, for each head, the products with four keys, still to be added over blocks."""
        f, dim = self._f, self._shape.head_dim
        sums = [[f.zeros(self._lanes) for _ in range(_KEYS)] for _ in heads]
        for at in range(0, dim, self._lanes):
            parts = [query.vector(self._lanes, head * dim + at) for head in heads]
            for i in range(_KEYS):
                key = keys.vector(self._lanes, i * self._pool.token + at)
                for own, part in zip(sums, parts, strict=True):
                    own[i] = f.fma(part, key, own[i])
        return [sums_in_blocks(f, own) for own in sums]

    def _sum_values(self, context: Context, scores: Pointer, stride: Value, out: Pointer) -> None:
        f, lanes, dim = self._f, self._lanes, self._shape.head_dim
        first = 0
        for count in self._heads:
            heads = range(first, first + count)
            part = 0
            for width in self._parts:
                parts = [part + i * lanes for i in range(width)]
                sums = [[f.variable(f.zeros(lanes)) for _ in parts] for _ in heads]
                with f.loop(context.first, context.end) as slot:
                    values = self._page(context, slot) + self._pool.half
                    later = self._page(context, f.least(slot + _AHEAD, context.end - 1))
                    for at in range(0, width * lanes, _LINE):
                        f.prefetch(later + (self._pool.half + part + at))
                    weights = [f.splat(scores[slot + stride * head], lanes) for head in heads]
                    for i, at in enumerate(parts):
                        value = values.vector(lanes, at)
                        for own, weight in zip(sums, weights, strict=True):
                            own[i].set(f.fma(weight, value, own[i].get()))
                for head, own in zip(heads, sums, strict=True):
                    factor = f.splat(scores[context.end + (lanes - 1) + stride * head], lanes)
                    for at, total in zip(parts, own, strict=True):
                        out.store(total.get() * factor, head * dim + at)
                part += width * lanes
            first += count


def _evenly(count: int, parts: int) -> list[int]:
    """Split a number into parts of nearly the same size, the larger ones first."""
    return [count // parts + (i < count % parts) for i in range(parts)]


def _mask_tree(f: KernelFunction, context: Context, begin: Value, row: Pointer) -> None:
    """Mask the drafts of other branches of a tree."""
    first = f.most(context.drafts, begin)
    with (
        f.loop(first, context.end) as slot,
        f.when(context.visible[slot - context.drafts].equals(0)),
    ):
        row[slot] = f.constant(F32, float("-inf"))


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
