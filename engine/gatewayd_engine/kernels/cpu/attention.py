"""Attention of one query row to one KV head's pages, in vector code.

Scores of the whole context are written to scratch memory first, then their softmax, then the sum
of the values. All loops depend on the row's own context alone, never on the batch, on chunks or on
threads, so a row has the same bits in every step that computes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from gatewayd_engine.kernels.cpu.elementary import exp, tanh
from gatewayd_engine.kernels.cpu.step_layout import StepShape
from gatewayd_engine.kernels.llvm.builder import F32, Function, Pointer, Value

_CHAINS = 8
"""Independent sums that hide the latency of additions."""


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


def attend(
    f: Function,
    shape: StepShape,
    lanes: int,
    query: Pointer,
    context: Context,
    scores: Pointer,
    stride: Value,
    out: Pointer,
) -> None:
    """Attend the query heads of one KV head.

    Args:
        f: function under construction.
        shape: of the model.
        lanes: of a vector.
        query: after rotary, ``[num_heads / num_kv_heads, head_dim]``.
        context: what they attend to.
        scores: scratch, ``[num_heads / num_kv_heads, stride]``.
        stride: numbers of scratch for a head, at least the context's rounded up to lanes.
        out: like ``query``.
    """
    heads = shape.num_heads // shape.num_kv_heads
    pool = PagedHeads(shape)
    # From a multiple of the lanes on, so that a window's vectors are those of any other step.
    begin = context.first // lanes * lanes
    with f.loop(0, heads) as head:
        q, row = query + head * shape.head_dim, scores + head * stride
        top = f.variable(_write_scores(f, shape, lanes, pool, q, context, begin, row))
        with f.when(context.visible.is_set()):
            top.set(_mask_tree(f, lanes, context, begin, row))
        highest = f.splat(f.largest(top.get()), lanes)
        total = _softmax(f, lanes, row, begin, context.end, highest)
        _sum_values(f, shape, lanes, pool, context, row, total, out + head * shape.head_dim)


def _page(shape: StepShape, pool: PagedHeads, context: Context, slot: Value) -> Pointer:
    """Return the keys at a slot."""
    page = context.table[slot // shape.page_size]
    return context.keys + page * pool.page + slot % shape.page_size * pool.token


def _write_scores(
    f: Function,
    shape: StepShape,
    lanes: int,
    pool: PagedHeads,
    q: Pointer,
    context: Context,
    begin: Value,
    row: Pointer,
) -> Value:
    """Write the scores, and return the largest ones by lane."""
    worst = float("-inf")
    top = f.variable(f.floats(lanes, worst))
    steps = f.numbers(range(lanes))
    with f.loop(begin, context.end, lanes) as slot:
        # Slots of one page: its size is a multiple of the lanes.
        keys = _page(shape, pool, context, slot)
        sums = [f.variable(f.zeros(lanes)) for _ in range(lanes)]
        for at in range(0, shape.head_dim, lanes):
            part = q.vector(lanes, at)
            for i, total in enumerate(sums):
                total.set(f.fma(part, keys.vector(lanes, i * pool.token + at), total.get()))
        made = f.sums([total.get() for total in sums]) * shape.scale
        if shape.softcap is not None:
            made = tanh(f, made * (1.0 / shape.softcap)) * shape.softcap
        slots = f.splat(slot, lanes) + steps
        seen = (slots < f.splat(context.end, lanes)) & (slots >= f.splat(context.first, lanes))
        made = f.choose(seen, made, f.floats(lanes, worst))
        row.store(made, slot)
        # Not by comparison alone: NaN must reach the result, by which the request fails.
        top.set(f.choose(made < top.get(), top.get(), made))
    return top.get()


def _mask_tree(f: Function, lanes: int, context: Context, begin: Value, row: Pointer) -> Value:
    """Mask the drafts of other branches of a tree; return the largest other scores by lane."""
    worst = f.constant(F32, float("-inf"))
    first = f.most(context.drafts, begin)
    with (
        f.loop(first, context.end) as slot,
        f.when(context.visible[slot - context.drafts].equals(0)),
    ):
        row[slot] = worst
    top = f.variable(f.splat(worst, lanes))
    with f.loop(begin, context.end, lanes) as at:
        made = row.vector(lanes, at)
        top.set(f.choose(made < top.get(), top.get(), made))
    return top.get()


def _softmax(f: Function, lanes: int, row: Pointer, begin: Value, end: Value, top: Value) -> Value:
    """Replace scores by their exponentials, and return the sum of those."""
    total = f.variable(f.zeros(lanes))
    with f.loop(begin, end, lanes) as at:
        made = exp(f, row.vector(lanes, at) - top)
        row.store(made, at)
        total.set(total.get() + made)
    return f.total(total.get())


def _sum_values(
    f: Function,
    shape: StepShape,
    lanes: int,
    pool: PagedHeads,
    context: Context,
    row: Pointer,
    total: Value,
    out: Pointer,
) -> None:
    parts = range(0, shape.head_dim, lanes)
    # Where a head has few vectors, slots take turns among several sums.
    turns = max(1, _CHAINS // len(parts))
    sums = [[f.variable(f.zeros(lanes)) for _ in parts] for _ in range(turns)]

    def add(slot: Value, turn: int) -> None:
        values = _page(shape, pool, context, slot) + pool.half
        weight = f.splat(row[slot], lanes)
        for part, each in zip(parts, sums[turn], strict=True):
            each.set(f.fma(weight, values.vector(lanes, part), each.get()))

    first = context.first
    whole = f.most(first, context.end // turns * turns)
    even = f.least(whole, (first + (turns - 1)) // turns * turns)
    with f.loop(first, even) as slot:
        add(slot, 0)
    with f.loop(even, whole, turns) as slot:
        for turn in range(turns):
            add(slot + turn, turn)
    with f.loop(whole, context.end) as slot:
        add(slot, 0)
    factor = f.splat(f.constant(F32, 1.0) / total, lanes)
    for i, part in enumerate(parts):
        made = sums[0][i].get()
        for others in sums[1:]:
            made = made + others[i].get()
        out.store(made * factor, part)
