"""Sums that several programs have parts of: the last one to arrive adds up what all have left.

It adds them in their order, so that the answer is the same each time. Source: Stream-K (Osama et
al., arXiv 2301.03598).
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
    """Write sums where nobody has other parts of them, or once the others are there.

    Args:
        acc: this program's part, float32 ``[lines, rows]``.
        added: to each row's sum, float32 ``[rows]``.
        target: where answers go.
        writes: which of them there are.
        mine: where they are among the parts of a split.
        size: how many parts a split has.
        partial: see ``Room``.
        arrived: likewise, the counter of these rows.
        split: whose part this is.
        SPLITS: how many there are.
    """
    if SPLITS == 1:
        tl.store(target, (acc + added[None, :]).to(target.dtype.element_ty), mask=writes)
    else:
        tl.store(partial + split * size + mine, acc, mask=writes)
        # All threads have written before one of them says so.
        tl.debug_barrier()
        before = tl.atomic_add(arrived, 1, sem="acq_rel")
        if before == SPLITS - 1:
            whole = tl.zeros_like(acc)
            for other in tl.static_range(SPLITS):
                left = partial + other * size + mine
                # Not from this multiprocessor's cache, which others do not write to.
                whole += tl.load(left, mask=writes, other=0.0, cache_modifier=".cg")
            tl.store(target, (whole + added[None, :]).to(target.dtype.element_ty), mask=writes)
            tl.store(arrived, 0)
