"""Attention of a tile of queries to a range of one sequence's pages: shared part of the kernels.

All query heads of one KV head are rows of the tile, so that its keys and values are read once and
products run on tensor cores. Sources: online softmax (Milakov and Gimelshein, arXiv 1805.02867);
FlashAttention-2 (Dao, arXiv 2307.08691); PagedAttention (Kwon et al., arXiv 2309.06180).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


def tail_of(dim: int, value_dim: int, parts: int) -> dict[str, int | bool]:
    """Return the constants of ``attend`` for keys of ``dim`` numbers and smaller values.

    Args:
        dim: size of a key.
        value_dim: size of a value.
        parts: vectors of a token in the pool: 2, or 1 if values are the beginnings of keys.
    """
    tail = dim - value_dim
    block = max(triton.next_power_of_2(tail), 16) if tail else 16
    return {"TAIL": tail, "BLOCK_T": block, "SHARES": parts == 1}


@triton.jit
def load_queries(
    place: tl.tensor,
    is_row: tl.tensor,
    DIM: tl.constexpr,
    TAIL: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_T: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Load the queries of a tile; see ``attend``.

    Args:
        place: pointers to them, ``[BLOCK_M]``.
        is_row: which rows there are, bool ``[BLOCK_M]``; the others become zeros.
        DIM: see ``attend``.
        TAIL: see there.
        BLOCK_D: see there.
        BLOCK_T: see there.

    Returns:
        ``q`` and ``q_tail`` of ``attend``.
    """
    column = tl.arange(0, BLOCK_D)[None, :]
    q = tl.load(place[:, None] + column, mask=is_row[:, None] & (column < DIM), other=0.0)
    q_tail = q
    if TAIL:
        after = tl.arange(0, BLOCK_T)[None, :]
        mask = is_row[:, None] & (after < TAIL)
        q_tail = tl.load(place[:, None] + DIM + after, mask=mask, other=0.0)
    return q, q_tail


@triton.jit
def attend(
    q: tl.tensor,
    q_tail: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    start: tl.tensor,
    limit: tl.tensor,
    oldest: tl.tensor,
    bits: tl.tensor,
    page_stride: tl.tensor,
    token_stride: tl.tensor,
    scale: tl.tensor,
    cap: tl.tensor,
    MASK: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_CAP: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TAIL: tl.constexpr,
    BLOCK_T: tl.constexpr,
    SHARES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Attend to positions ``low`` to ``high`` with online softmax.

    Args:
        q: queries ``[BLOCK_M, BLOCK_D]``, zeros beyond ``DIM``.
        q_tail: the ``TAIL`` numbers after those, ``[BLOCK_M, BLOCK_T]``; not read without them.
        keys: pointer to the keys of the KV head in page 0.
        values: likewise for values; not read if these are the keys.
        table: pointer to the sequence's pages.
        low: first position of the range.
        high: end of the range, exclusive.
        start: position of the first token of this step.
        limit: end of the positions that a row sees, exclusive, int32 ``[BLOCK_M]``; with ``MASK``
            "tree", of those before this step.
        oldest: first position that a row sees, int32 ``[BLOCK_M]``; with ``MASK`` "tree", of those
            before this step.
        bits: mask of the tokens of this step that a row sees, uint64 ``[BLOCK_M]``.
        page_stride: elements from one page to the next.
        token_stride: elements from one token of a page to the next.
        scale: factor on scores.
        cap: see ``HAS_CAP``.
        MASK: "all": every row sees the whole range; "causal"; or "tree".
        WINDOW: sliding window; 0 for none.
        CHUNKED: see ``AttentionShape``.
        WIDTH: queries of a sequence.
        HAS_CAP: whether scores become ``cap * tanh(scores / cap)``.
        PAGE: tokens per page.
        DIM: size of a value, and of a key without its tail.
        BLOCK_M: rows of the tile.
        BLOCK_N: tokens that are read at a time.
        BLOCK_D: ``DIM`` rounded up to a power of two.
        TAIL: numbers of a key after the first ``DIM``, which only scores depend on.
        BLOCK_T: ``TAIL`` rounded up to a power of two.
        SHARES: whether the first ``DIM`` numbers of a key are its value.

    Returns:
        Sums of weighted values, float32 ``[BLOCK_M, BLOCK_D]``; for each row the largest score in
        units of log 2, minus infinity if it sees nothing, and the sum of weights, which are powers
        of 2 of scores minus that.
    """
    column = tl.arange(0, BLOCK_D)[None, :]
    highest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for begin in range(low, high, BLOCK_N):
        at = begin + tl.arange(0, BLOCK_N)
        inside = at < high
        # 64 bits: a pool may have more elements than an int32 can index.
        page = tl.load(table + at // PAGE, mask=inside, other=0).to(tl.int64)
        record = (page * page_stride + at % PAGE * token_stride)[:, None]
        place = record + column
        # Tokens beyond the range become zeros: zero times a NaN in an unused slot would be NaN.
        held = inside[:, None] & (column < DIM)
        k = tl.load(keys + place, mask=held, other=0.0).to(q.dtype)
        # "ieee": float32 queries must not be rounded to TF32.
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if TAIL:
            after = tl.arange(0, BLOCK_T)[None, :]
            is_tail = inside[:, None] & (after < TAIL)
            rest = tl.load(keys + record + DIM + after, mask=is_tail, other=0.0).to(q.dtype)
            scores += tl.dot(q_tail, tl.trans(rest), input_precision="ieee")
        scores *= scale
        if HAS_CAP:
            # tanh(y) is 1 - 2 / (1 + exp(2y)).
            scores = cap * (1.0 - 2.0 / (1.0 + tl.exp(2.0 * scores / cap)))
        seen = inside[None, :]
        if MASK == "causal":
            seen = seen & (at[None, :] < limit[:, None])
            if WINDOW:
                seen = seen & (at[None, :] >= oldest[:, None])
        elif MASK == "tree":
            before = at[None, :] < limit[:, None]
            if WINDOW:
                before = before & (at[None, :] >= oldest[:, None])
            # Clamped, because a shift by 64 or more is undefined; such positions are masked below.
            slot = tl.minimum(tl.maximum(at - start, 0), 63).to(tl.uint64)
            later = bits[:, None] >> slot[None, :]
            is_ancestor = (later & 1) == 1
            if WINDOW and (CHUNKED or WINDOW <= WIDTH):
                # Positions within the tree: less the tokens on the path from it to the query.
                depth = (count_bits(bits) - 1)[:, None] - count_bits(later >> 1)
                is_ancestor = is_ancestor & (start + depth >= oldest[:, None])
            seen = seen & (before | ((at >= start)[None, :] & is_ancestor))
        # Base 2 from here on, because exp2 is one instruction. Online softmax: sums are relative to
        # the highest score so far, and rescaled when that rises.
        scores = tl.where(seen, scores * LOG2E, float("-inf"))
        raised = tl.maximum(highest, tl.max(scores, 1))
        # Avoids NaN in a row that has seen no token yet.
        base = tl.where(raised == float("-inf"), 0.0, raised)
        weights = tl.exp2(scores - base[:, None])
        kept = tl.exp2(highest - base)
        total = total * kept + tl.sum(weights, 1)
        v = k if SHARES else tl.load(values + place, mask=held, other=0.0).to(q.dtype)
        acc = acc * kept[:, None] + tl.dot(weights.to(q.dtype), v, input_precision="ieee")
        highest = raised
    return acc, highest, total


@triton.jit
def first_visible(position: tl.tensor, WINDOW: tl.constexpr, CHUNKED: tl.constexpr) -> tl.tensor:
    """Return the first position that a token attends to, as ``attention.windows`` does."""
    oldest = position - WINDOW + 1
    if CHUNKED and WINDOW:
        oldest = position // WINDOW * WINDOW
    return oldest


@triton.jit
def normalized(
    acc: tl.tensor,
    highest: tl.tensor,
    total: tl.tensor,
    sinks: tl.tensor,
    head: tl.tensor,
    is_row: tl.tensor,
    HAS_SINKS: tl.constexpr,
) -> tl.tensor:
    """Return the outputs of rows that have seen all that they see; see ``attend``."""
    if HAS_SINKS:
        sink = tl.load(sinks + head, mask=is_row, other=0.0) * LOG2E
        raised = tl.maximum(highest, sink)
        # The sink joins the softmax's denominator; as the largest score it rescales the sums.
        acc = acc * tl.exp2(highest - raised)[:, None]
        total = total * tl.exp2(highest - raised) + tl.exp2(sink - raised)
    # A query that sees nothing has a sum of zero and gets zeros.
    return acc / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def count_bits(bits: tl.tensor) -> tl.tensor:
    """Return the population count of uint64 numbers, int32."""
    low, high = bits.to(tl.uint32), (bits >> 32).to(tl.uint32)
    return _count_bits(low) + _count_bits(high)


@triton.jit
def _count_bits(bits: tl.tensor) -> tl.tensor:
    # Counts per 2, 4 and 8 bits, then the sum over all bytes.
    bits = bits - ((bits >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F
    bits = bits + (bits >> 8)
    return ((bits + (bits >> 16)) & 0x3F).to(tl.int32)


@triton.jit
def part_of(span: tl.tensor, SPLITS: tl.constexpr, LEAST: tl.constexpr) -> tl.tensor:
    """Return the tokens of each of at most ``SPLITS`` parts of a range, at least ``LEAST``."""
    # Whole steps, which are as long as the largest token tile: only a last part has a partial tile.
    STEP: tl.constexpr = LEAST // 2
    return tl.maximum((span + SPLITS * STEP - 1) // (SPLITS * STEP) * STEP, LEAST)
