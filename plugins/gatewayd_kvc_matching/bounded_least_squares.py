"""Exact least squares with a lower bound, for the weights of keys."""

from __future__ import annotations

import torch

_PATIENCE = 3
"""Block exchanges without progress before single exchanges, which always terminate."""


def bounded_least_squares(
    gram: torch.Tensor, product: torch.Tensor, bound: float, most_steps: int = 500
) -> torch.Tensor:
    """Return the ``w >= bound`` that minimizes ``w @ gram @ w - 2 * product @ w``.

    Block principal pivoting (Kim and Park 2011): the system is solved for a guess of the active
    set, all variables that contradict it are exchanged, and the first guess without contradictions
    is the solution.

    Args:
        gram: symmetric and positive definite, float64, shape ``[t, t]``.
        product: float64, shape ``[t]``.
        bound: lower bound of each.
        most_steps: maximum number of systems to solve; the result is at least feasible.

    Returns:
        Float64, shape ``[t]``.
    """
    size = len(product)
    # With `w = bound + above` the constraint becomes `above >= 0`.
    target = product - bound * gram.sum(1)
    above = torch.zeros_like(target)
    slope = -target
    is_free = torch.ones(size, dtype=torch.bool)
    fewest, patience = size + 1, _PATIENCE
    # Rounding must not make a variable at its bound oscillate.
    zero = 1e-12 * float(target.abs().max().clamp_min(1e-300))
    for _ in range(most_steps):
        free = is_free.nonzero().squeeze(1)
        above.zero_()
        if len(free):
            factor = torch.linalg.cholesky(gram[free][:, free])
            above[free] = torch.cholesky_solve(target[free, None], factor).squeeze(1)
        slope = gram @ above - target
        # Zero by construction, except for rounding.
        slope[free] = 0
        # Free variables below their bound, and bound ones that should rise: the rest satisfies the
        # optimality conditions.
        wrong = torch.where(is_free, above < -zero, slope < -zero)
        count = int(wrong.sum())
        if not count:
            break
        if count < fewest:
            fewest, patience = count, _PATIENCE
        elif patience:
            patience -= 1
        else:
            # Murty's rule, a single exchange of the last one, does not cycle.
            last = wrong.nonzero()[-1]
            wrong = torch.zeros_like(wrong).index_fill_(0, last.squeeze(-1), True)
        is_free ^= wrong
    return above.clamp_min(0) + bound
