"""Sampling of tokens from logits in Triton: the argmax of logit / temperature + Gumbel noise.

Compute-bound at large batches (noise takes about fifty operations per token; greedy rows and
filtered tokens need none), latency-bound at small ones. The vocabulary is split over programs so
that one row of logits has many; a second kernel reduces over the blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.early_launch import wait
from gatewayd_engine.kernels.sampling.noise import bits, gumbel, keys
from gatewayd_engine.kernels.sampling.top_k_top_p import pivots

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import SamplingColumns

_BLOCK = 2048


def sample(
    logits: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    columns: SamplingColumns,
    chosen: torch.Tensor | None = None,
    last_tokens: torch.Tensor | None = None,
    *,
    early: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``base``."""
    n, vocab = logits.shape
    if chosen is None:
        tokens = torch.empty(n, dtype=torch.int32, device=logits.device)
        best = torch.empty(n, dtype=torch.float32, device=logits.device)
    else:
        tokens, best = chosen[0], chosen[1].view(torch.float32)
    if n == 0:
        return tokens, best
    # The smallest logit that passes the filters, the best token of each block, then of the row.
    lowest = pivots(logits, rows, columns, early=early)
    blocks = triton.cdiv(vocab, _BLOCK)
    bests = torch.empty((n, blocks), dtype=torch.float32, device=logits.device)
    scores = torch.empty_like(bests)
    candidates = torch.empty_like(bests, dtype=torch.int32)
    _draw[(n, blocks)](
        logits,
        rows,
        positions,
        columns.temperature,
        columns.seed,
        lowest,
        bests,
        scores,
        candidates,
        vocab,
        logits.stride(0),
        blocks,
        BLOCK=_BLOCK,
        EARLY=early,
        num_warps=4,
        launch_pdl=early,
    )
    _choose[(n,)](
        rows,
        columns.temperature,
        bests,
        scores,
        candidates,
        tokens,
        best,
        tokens if last_tokens is None else last_tokens,
        blocks,
        IS_LAST=last_tokens is not None,
        BLOCKS=triton.next_power_of_2(blocks),
        EARLY=early,
        num_warps=1,
        launch_pdl=early,
    )
    return tokens, best


@triton.jit
def _draw(
    logits: tl.tensor,
    rows: tl.tensor,
    positions: tl.tensor,
    temperatures: tl.tensor,
    seeds: tl.tensor,
    lowest: tl.tensor,
    bests: tl.tensor,
    scores: tl.tensor,
    candidates: tl.tensor,
    vocab: tl.tensor,
    stride: tl.tensor,
    blocks: tl.tensor,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Find each block's largest logit, and its best token and score relative to that."""
    wait(EARLY)
    line, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(rows + line)
    temperature = tl.load(temperatures + row)
    token = block * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab
    value = tl.load(logits + line * stride + token, mask=inside, other=float("-inf"))
    value = value.to(tl.float32)
    # A row with a NaN still yields a valid token id, but its largest logit is reported as NaN.
    has_nan = tl.max((value != value).to(tl.int32), 0)
    value = tl.where(value == value, value, float("-inf"))
    largest = tl.max(value, 0)
    score = value
    if temperature >= 1e-7:
        pivot = tl.load(lowest + line)
        score = tl.full((BLOCK,), float("-inf"), tl.float32)
        # With filters most blocks have no token left, and need no noise.
        if largest >= pivot:
            key = keys(tl.load(seeds + row), tl.load(positions + line).to(tl.int64))
            # The difference of equal infinities counts as zero, not NaN.
            # Relative to the block's largest: next to large quotients float32 would lose the noise.
            below = tl.where(value == largest, 0.0, (value - largest) / temperature)
            noisy = below + gumbel(bits(key, token))
            score = tl.where(inside & (value >= pivot), noisy, float("-inf"))
    most, where = tl.max(score, 0, return_indices=True)
    place = line * blocks + block
    tl.store(bests + place, tl.where(has_nan != 0, float("nan"), largest))
    tl.store(scores + place, most)
    tl.store(candidates + place, block * BLOCK + where)


@triton.jit
def _choose(
    rows: tl.tensor,
    temperatures: tl.tensor,
    bests: tl.tensor,
    scores: tl.tensor,
    candidates: tl.tensor,
    tokens: tl.tensor,
    best: tl.tensor,
    last_tokens: tl.tensor,
    blocks: tl.tensor,
    IS_LAST: tl.constexpr,
    BLOCKS: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Reduce over the blocks; of equal scores the first token is chosen."""
    wait(EARLY)
    line = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + line)
    temperature = tl.load(temperatures + row)
    block = tl.arange(0, BLOCKS)
    inside = block < blocks
    value = tl.load(bests + line * blocks + block, mask=inside, other=float("-inf"))
    has_nan = tl.max((value != value).to(tl.int32), 0)
    value = tl.where(value == value, value, float("-inf"))
    largest = tl.max(value, 0)
    score = value
    if temperature >= 1e-7:
        score = tl.load(scores + line * blocks + block, mask=inside, other=float("-inf"))
        # From the block's largest logit to the row's.
        score += tl.where(value == largest, 0.0, (value - largest) / temperature)
    _, where = tl.max(score, 0, return_indices=True)
    token = tl.load(candidates + line * blocks + where)
    tl.store(tokens + line, token)
    if IS_LAST:
        # For the inputs of the next step, without the host.
        tl.store(last_tokens + row, token)
    tl.store(best + line, tl.where(has_nan != 0, float("nan"), largest))
