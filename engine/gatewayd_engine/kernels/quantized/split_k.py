"""Split-K reduction: the last program to finish adds up the partial sums of all programs.

It adds them in a fixed order, so that results are deterministic. Source: Stream-K (Osama et al.,
arXiv 2301.03598).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_sums(
    acc: tl.tensor,
    added: tl.tensor,
    target: tl.tensor,
    writes: tl.tensor,
    mine: tl.tensor,
    size: tl.tensor,
    partial: tl.tensor,
    arrived: tl.tensor,
    split: tl.tensor,
    SPLITS: tl.constexpr,
) -> None:
    """Store this program's sums, or reduce those of all splits if it is the last to finish.

    Args:
        acc: partial sums of this program, float32 ``[tokens, rows]``.
        added: bias of each row, float32 ``[rows]``.
        target: pointers to the output.
        writes: mask of the valid output elements.
        mine: index of each element in the partial sums of a split.
        size: number of partial sums of a split.
        partial: see ``DequantizeScratch``.
        arrived: likewise, the counter of this tile's rows.
        split: split of this program.
        SPLITS: number of splits.
    """
    if SPLITS == 1:
        tl.store(target, (acc + added[None, :]).to(target.dtype.element_ty), mask=writes)
    else:
        tl.store(partial + split * size + mine, acc, mask=writes)
        # All threads must have written before the counter is incremented.
        tl.debug_barrier()
        # Releases this program's sums and, for the last to arrive, acquires those of all others.
        before = tl.atomic_add(arrived, 1, sem="acq_rel")
        if before == SPLITS - 1:
            whole = tl.zeros_like(acc)
            for other in tl.static_range(SPLITS):
                left = partial + other * size + mine
                # Bypasses the L1 cache, which is not coherent with other multiprocessors' writes.
                whole += tl.load(left, mask=writes, other=0.0, cache_modifier=".cg")
            tl.store(target, (whole + added[None, :]).to(target.dtype.element_ty), mask=writes)
            # For the next product: scratch is shared by matrices that run in sequence.
            tl.store(arrived, 0)
