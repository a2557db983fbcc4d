"""Log-probabilities in Triton: normalizer, sampled token and rank in one pass over the logits.

Memory-bound. Blocks of the vocabulary are summed independently, each relative to its largest logit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 4096


def logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """See ``base``."""
    n, vocab = logits.shape
    device = logits.device
    blocks = triton.cdiv(vocab, _BLOCK)
    normalizer = torch.empty((n, 1), dtype=torch.float32, device=device)
    chosen = torch.empty(n, dtype=torch.float32, device=device)
    rank = torch.empty(n, dtype=torch.int32, device=device)
    if n:
        bests = torch.empty((n, blocks), dtype=torch.float32, device=device)
        sums = torch.empty_like(bests)
        counts = torch.empty_like(bests, dtype=torch.int32)
        _blocks[(n, blocks)](
            logits,
            tokens,
            bests,
            sums,
            counts,
            vocab,
            logits.stride(0),
            blocks,
            BLOCK=_BLOCK,
            num_warps=8,
        )
        _reduce[(n,)](
            logits,
            tokens,
            bests,
            sums,
            counts,
            normalizer,
            chosen,
            rank,
            logits.stride(0),
            blocks,
            BLOCKS=triton.next_power_of_2(blocks),
            num_warps=1,
        )
    # On logits in their own dtype: one normalizer for all does not change their order.
    top, ids = logits.topk(num_top, -1)
    return chosen, rank, top.float() - normalizer, ids


@triton.jit
def _blocks(
    logits: tl.tensor,
    tokens: tl.tensor,
    bests: tl.tensor,
    sums: tl.tensor,
    counts: tl.tensor,
    vocab: tl.tensor,
    stride: tl.tensor,
    blocks: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Compute each block's largest logit, its sum relative to that, and its likelier tokens."""
    line, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    source = logits + line * stride
    token = block * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab
    value = tl.load(source + token, mask=inside, other=float("-inf")).to(tl.float32)
    own = tl.load(source + tl.load(tokens + line)).to(tl.float32)
    largest = tl.max(value, 0)
    # Avoids NaN in a block whose logits are all minus infinity; its sum is zero.
    base = tl.where(largest == float("-inf"), 0.0, largest)
    place = line * blocks + block
    tl.store(bests + place, largest)
    tl.store(sums + place, tl.sum(tl.exp(value - base), 0))
    tl.store(counts + place, tl.sum((value > own).to(tl.int32), 0))


@triton.jit
def _reduce(
    logits: tl.tensor,
    tokens: tl.tensor,
    bests: tl.tensor,
    sums: tl.tensor,
    counts: tl.tensor,
    normalizer: tl.tensor,
    chosen: tl.tensor,
    rank: tl.tensor,
    stride: tl.tensor,
    blocks: tl.tensor,
    BLOCKS: tl.constexpr,
) -> None:
    """Reduce over the blocks of a row of logits."""
    line = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    inside = block < blocks
    place = line * blocks + block
    best = tl.load(bests + place, mask=inside, other=float("-inf"))
    largest = tl.max(best, 0)
    weight = tl.load(sums + place, mask=inside, other=0.0)
    # Log-sum-exp over blocks: each sum is rescaled from its block's largest logit to the row's.
    total = largest + tl.log(tl.sum(weight * tl.exp(best - largest), 0))
    own = tl.load(logits + line * stride + tl.load(tokens + line)).to(tl.float32)
    tl.store(normalizer + line, total)
    tl.store(chosen + line, own - total)
    # Ties share the better rank, as only larger logits are counted.
    tl.store(rank + line, 1 + tl.sum(tl.load(counts + place, mask=inside, other=0), 0))
