"""Least squares with a lower bound, exactly: how much each key kept is to weigh."""

from __future__ import annotations

import torch

_PATIENCE = 3
"""Exchanges of many that may not help before it is one at a time, which always ends."""


def bounded_least_squares(
    gram: torch.Tensor, product: torch.Tensor, bound: float, most_steps: int = 500
) -> torch.Tensor:
    """The ``w >= bound`` with the least ``w @ gram @ w - 2 * product @ w``.

    Block principal pivoting (Kim and Park 2011): a guess of which are at the bound is solved, all
    that contradict it change sides, and the solution is the first guess that nothing contradicts.

    Args:
        gram: symmetric and positive definite, float64, shape ``[t, t]``.
        product: float64, shape ``[t]``.
        bound: of each.
        most_steps: systems that are solved at most; what is found by then is at least feasible.

    Returns:
        Float64, shape ``[t]``.
    """
    size = len(product)
    target = product - bound * gram.sum(1)
    above = torch.zeros_like(target)
    slope = -target
    is_free = torch.ones(size, dtype=torch.bool)
    fewest, patience = size + 1, _PATIENCE
    # Rounding must not move a number that stands on its bound to and fro.
    zero = 1e-12 * float(target.abs().max().clamp_min(1e-300))
    for _ in range(most_steps):
        free = is_free.nonzero().squeeze(1)
        above.zero_()
        if len(free):
            factor = torch.linalg.cholesky(gram[free][:, free])
            above[free] = torch.cholesky_solve(target[free, None], factor).squeeze(1)
        slope = gram @ above - target
        slope[free] = 0
        wrong = torch.where(is_free, above < -zero, slope < -zero)
        count = int(wrong.sum())
        if not count:
            break
        if count < fewest:
            fewest, patience = count, _PATIENCE
        elif patience:
            patience -= 1
        else:
            last = wrong.nonzero()[-1]
            wrong = torch.zeros_like(wrong).index_fill_(0, last.squeeze(-1), True)
        is_free ^= wrong
    return above.clamp_min(0) + bound
