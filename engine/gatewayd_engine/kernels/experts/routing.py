"""Routing tables of mixtures of experts, and the sums of experts' outputs, in Triton.

Tables are built by one program per expert, which counts the visits of all experts and writes its
own in order: no program waits for another, and nothing is counted atomically, so that tables are
deterministic. For few tokens each of these programs also selects the experts of all tokens, which
takes less time than another launch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.experts.base import Visits, block_lines, most_blocks

_CHUNKS = {16: 512, 32: 512, 64: 2048, 128: 2048}
"""Visits that a program processes together, by the lines of a block, which grow with the visits."""
_ONE_WARP = 1024
"""Most experts among which one warp selects."""
_LEAST_BINS = 32
"""Least bins of a histogram: one per thread of a warp."""
_BLOCK = 1024
_FEW = (16, 64)
"""Token tiles of the fused kernel, in which each program repeats the selection for all tokens."""
_MOST_SCORES = 1 << 13
"""Most scores of such a tile: 64 tokens of 128 experts."""


def route(
    scores: torch.Tensor, top_k: int, *, renormalize: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``base``; of equal scores the first expert's counts as larger."""
    n, num_experts = scores.shape
    weights = torch.empty((n, top_k), dtype=torch.float32, device=scores.device)
    chosen = torch.empty((n, top_k), dtype=torch.int32, device=scores.device)
    if n:
        block = triton.next_power_of_2(num_experts)
        _route[(n,)](
            scores,
            weights,
            chosen,
            num_experts,
            scores.stride(0),
            TOP_K=top_k,
            RENORMALIZE=renormalize,
            BLOCK=block,
            SLOTS=triton.next_power_of_2(top_k),
            num_warps=1 if block <= _ONE_WARP else 4,
        )
    return weights, chosen


def route_visits(
    scores: torch.Tensor, top_k: int, *, renormalize: bool
) -> tuple[torch.Tensor, Visits]:
    """See ``base``; ties are broken as in ``route``."""
    n, num_experts = scores.shape
    block = triton.next_power_of_2(num_experts)
    # Each program holds the scores of all tokens in registers, which limits tokens times experts.
    tokens = next((most for most in _FEW if n <= most and most * block <= _MOST_SCORES), None)
    if tokens is None or n == 0:
        weights, chosen = route(scores, top_k, renormalize=renormalize)
        return weights, sort_visits(chosen, num_experts)
    visits = _tables(n * top_k, top_k, num_experts, None, scores.device)
    weights = torch.empty((n, top_k), dtype=torch.float32, device=scores.device)
    _route_visits[(num_experts,)](
        scores,
        weights,
        visits.order,
        visits.experts,
        n,
        len(visits.experts),
        num_experts,
        scores.stride(0),
        TOP_K=top_k,
        RENORMALIZE=renormalize,
        LINES=visits.lines,
        TOKENS=tokens,
        BLOCK=block,
        SLOTS=triton.next_power_of_2(top_k),
        num_warps=4 if 4 * tokens * block <= _MOST_SCORES else 8,
    )
    return weights, visits


def sort_visits(chosen: torch.Tensor, num_experts: int, lines: int | None = None) -> Visits:
    """See ``base``."""
    visits = _tables(chosen.numel(), chosen.shape[1], num_experts, lines, chosen.device)
    if visits.num_visits:
        _sort_visits[(num_experts,)](
            chosen,
            visits.order,
            visits.experts,
            visits.num_visits,
            len(visits.experts),
            num_experts,
            LINES=visits.lines,
            # One bin more than experts, for lanes beyond the last visit.
            BINS=max(triton.next_power_of_2(num_experts + 1), _LEAST_BINS),
            CHUNK=_CHUNKS[visits.lines],
            num_warps=4,
        )
    return visits


def _tables(
    count: int, top_k: int, num_experts: int, lines: int | None, device: torch.device
) -> Visits:
    """Allocate the tables of ``count`` visits."""
    lines = lines or block_lines(count, num_experts)
    blocks = most_blocks(count, num_experts, lines)
    order = torch.empty(blocks * lines, dtype=torch.int32, device=device)
    experts = torch.empty(blocks, dtype=torch.int32, device=device)
    return Visits(order, experts, lines, count, top_k)


def sum_visits(answers: torch.Tensor, top_k: int) -> torch.Tensor:
    """See ``base``."""
    n, size = len(answers) // top_k, answers.shape[1]
    out = torch.empty((n, size), dtype=answers.dtype, device=answers.device)
    if n:
        _sum_visits[(n, triton.cdiv(size, _BLOCK))](
            answers, out, size, TOP_K=top_k, BLOCK=_BLOCK, num_warps=4
        )
    return out


@triton.jit
def _shares(
    scores: tl.tensor,
    token: tl.tensor,
    is_token: tl.tensor,
    num_experts: tl.tensor,
    stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the softmax over scores, float32 ``[tokens, BLOCK]``, and keys to select by."""
    expert = tl.arange(0, BLOCK)[None, :]
    inside = expert < num_experts
    place = scores + token.to(tl.int64)[:, None] * stride + expert
    # Lanes beyond the tokens get equal shares, which are never stored, rather than NaN.
    score = tl.load(place, mask=is_token[:, None] & inside, other=0.0).to(tl.float32)
    score = tl.where(inside, score, float("-inf"))
    part = tl.exp(score - tl.max(score, 1)[:, None])
    part = part / tl.sum(part, 1)[:, None]
    # NaN sorts after all numbers; padding and experts already selected sort after NaN.
    return part, tl.where(inside, tl.where(part == part, part, -1.0), -2.0)


@triton.jit
def _first_largest(key: tl.tensor, expert: tl.tensor) -> tl.tensor:
    """Return the first expert with the largest key, for each token."""
    most = tl.max(key, 1)[:, None]
    return tl.min(tl.where(key == most, expert, key.shape[1]), 1)


@triton.jit
def _route(
    scores: tl.tensor,
    weights: tl.tensor,
    chosen: tl.tensor,
    num_experts: tl.tensor,
    stride: tl.tensor,
    TOP_K: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    SLOTS: tl.constexpr,
) -> None:
    token = tl.program_id(0) + tl.arange(0, 1)
    expert, slot = tl.arange(0, BLOCK)[None, :], tl.arange(0, SLOTS)[None, :]
    part, key = _shares(scores, token, token >= 0, num_experts, stride, BLOCK)
    kept = tl.zeros((1, SLOTS), tl.float32)
    # Repeated selection of the largest instead of a sort, as ``top_k`` is small.
    for place in range(TOP_K):
        best = _first_largest(key, expert)
        is_best = expert == best[:, None]
        weight = tl.sum(tl.where(is_best, part, 0.0), 1)
        kept = tl.where(slot == place, weight[:, None], kept)
        key = tl.where(is_best, -2.0, key)
        tl.store(chosen + token * TOP_K + place, best.to(tl.int32))
    if RENORMALIZE:
        kept = kept / tl.sum(kept, 1)[:, None]
    tl.store(weights + token[:, None] * TOP_K + slot, kept, mask=slot < TOP_K)


@triton.jit(do_not_specialize=["n", "blocks"])
def _route_visits(
    scores: tl.tensor,
    weights: tl.tensor,
    order: tl.tensor,
    experts: tl.tensor,
    n: tl.tensor,
    blocks: tl.tensor,
    num_experts: tl.tensor,
    stride: tl.tensor,
    TOP_K: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    LINES: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    SLOTS: tl.constexpr,
) -> None:
    mine = tl.program_id(0)
    token = tl.arange(0, TOKENS)
    is_token = token < n
    expert, slot = tl.arange(0, BLOCK)[None, :], tl.arange(0, SLOTS)[None, :]
    part, key = _shares(scores, token, is_token, num_experts, stride, BLOCK)
    kept = tl.zeros((TOKENS, SLOTS), tl.float32)
    counts = tl.zeros((BLOCK,), tl.int32)
    place_here = tl.zeros((TOKENS,), tl.int32) - 1
    # As in ``_route``, for all tokens. Also counts the visits of all experts, and notes in which of
    # its places a token selects this program's expert: at most one, as they are distinct.
    for place in range(TOP_K):
        best = _first_largest(key, expert)
        is_best = expert == best[:, None]
        weight = tl.sum(tl.where(is_best, part, 0.0), 1)
        kept = tl.where(slot == place, weight[:, None], kept)
        key = tl.where(is_best, -2.0, key)
        counts += tl.sum((is_best & is_token[:, None]).to(tl.int32), 0)
        place_here = tl.where(best == mine, place, place_here)
    # All programs have computed the same weights; one stores them.
    if mine == 0:
        if RENORMALIZE:
            kept = kept / tl.sum(kept, 1)[:, None]
        is_weight = is_token[:, None] & (slot < TOP_K)
        tl.store(weights + token[:, None] * TOP_K + slot, kept, mask=is_weight)
    begin = _my_blocks(counts, order, experts, mine, n * TOP_K, blocks, num_experts, LINES, BLOCK)
    is_mine = is_token & (place_here >= 0)
    # An expert's visits stay in the order of tokens.
    rank = tl.cumsum(is_mine.to(tl.int32), 0) - 1
    tl.store(begin + rank, token * TOP_K + place_here, mask=is_mine)


@triton.jit
def _my_blocks(
    counts: tl.tensor,
    order: tl.tensor,
    experts: tl.tensor,
    expert: tl.tensor,
    count: tl.tensor,
    blocks: tl.tensor,
    num_experts: tl.tensor,
    LINES: tl.constexpr,
    BINS: tl.constexpr,
) -> tl.tensor:
    """Mark the blocks of an expert, and the padding lines of its last block.

    The last expert's program marks the empty blocks as well.

    Args:
        counts: visits of each expert, int32 ``[BINS]``; undefined from ``num_experts`` on.
        order: see ``Visits``.
        experts: likewise.
        expert: expert whose blocks are marked.
        count: number of visits.
        blocks: number of blocks.
        num_experts: number of experts.
        LINES: lines of a block.
        BINS: see ``counts``.

    Returns:
        Pointer into ``order`` at which the expert's visits begin.
    """
    each = tl.arange(0, BINS)
    # An expert's blocks begin after those of all experts before it.
    needed = tl.where(each < num_experts, (counts + LINES - 1) // LINES, 0)
    first = tl.sum(tl.where(each < expert, needed, 0), 0)
    mine = tl.sum(tl.where(each == expert, counts, 0), 0)
    end = first + (mine + LINES - 1) // LINES
    for block in range(first, end):
        tl.store(experts + block, expert)
    if expert == num_experts - 1:
        for block in range(end, blocks):
            tl.store(experts + block, -1)
    begin = order + first * LINES
    # Fewer than LINES lines of the last block are padding; ``count`` is no visit and marks them.
    spare = mine + tl.arange(0, LINES)
    none = tl.zeros((LINES,), tl.int32) + count
    tl.store(begin + spare, none, mask=spare < (end - first) * LINES)
    return begin


@triton.jit(do_not_specialize=["count", "blocks"])
def _sort_visits(
    chosen: tl.tensor,
    order: tl.tensor,
    experts: tl.tensor,
    count: tl.tensor,
    blocks: tl.tensor,
    num_experts: tl.tensor,
    LINES: tl.constexpr,
    BINS: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    expert = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    counts = tl.zeros((BINS,), tl.int32)
    for start in range(0, count, CHUNK):
        visit = start + lane
        # The last bin belongs to no expert.
        at = tl.load(chosen + visit, mask=visit < count, other=BINS - 1)
        counts += tl.histogram(at, BINS)
    begin = _my_blocks(counts, order, experts, expert, count, blocks, num_experts, LINES, BINS)
    # Second pass: only counts of all visits tell where an expert's begin.
    seen = 0
    for start in range(0, count, CHUNK):
        visit = start + lane
        at = tl.load(chosen + visit, mask=visit < count, other=BINS - 1)
        is_mine = (at == expert).to(tl.int32)
        tl.store(begin + seen + tl.cumsum(is_mine, 0) - 1, visit, mask=is_mine != 0)
        seen += tl.sum(is_mine, 0)


@triton.jit
def _sum_visits(
    answers: tl.tensor,
    out: tl.tensor,
    size: tl.tensor,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    total = tl.zeros((BLOCK,), tl.float32)
    # In the order of experts by weight, one after another: the same bits in any batch.
    for place in range(TOP_K):
        from_answer = answers + (token * TOP_K + place) * size + column
        total += tl.load(from_answer, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * size + column, total.to(out.dtype.element_ty), mask=inside)
