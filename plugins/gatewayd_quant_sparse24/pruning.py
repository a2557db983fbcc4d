"""SparseGPT (arXiv 2301.00774): two of four columns are pruned, the rest compensates each error.

Columns are processed one by one. Which two of four are pruned is decided when they are reached, by
the cost after all earlier compensation: the square of a number over that of its pivot.
"""

from __future__ import annotations

import logging

import torch

_log = logging.getLogger(__name__)

_OF, _GO = 4, 2
_BLOCK = 128
"""Columns after which errors are propagated to all following ones; before, within the block."""
_DAMPING = 0.01
"""Fraction of the mean that is added to the Hessian's diagonal."""
_ATTEMPTS = 4


def pruned(weight: torch.Tensor, gram: torch.Tensor) -> torch.Tensor | None:
    """Prune a matrix so that its output changes least.

    Args:
        weight: float32, shape ``[rows, columns]``; not modified.
        gram: of the inputs, float64, shape ``[columns, columns]``; not modified.

    Returns:
        Float32 of the same shape; None if the Gram matrix is not positive definite even with
        damping.
    """
    gram = gram.clone()
    # An input that was always 0 has no error and no influence. Its column is pruned before all
    # others, but stays if possible, for other inputs and unused experts.
    unused = gram.diagonal() == 0
    gram.diagonal()[unused] = 1.0
    spread = _spread(gram)
    if spread is None:
        return None
    pivots, rest = spread.diagonal(), weight.clone()
    rows, columns = rest.shape
    for begin in range(0, columns, _BLOCK):
        end = min(begin + _BLOCK, columns)
        lost = rest.new_empty((rows, end - begin))
        for column in range(begin, end):
            place = column % _OF
            if place == 0:
                four = slice(column, column + _OF)
                costs = (rest[:, four] / pivots[four]).square_()
                costs = torch.where(unused[four], -1 / rest[:, four].abs(), costs)
                cheapest = costs.argsort(dim=1, stable=True)[:, :_GO]
                goes = torch.zeros_like(costs, dtype=torch.bool).scatter_(1, cheapest, value=True)
            gone = goes[:, place]
            error = torch.where(gone, rest[:, column], 0.0) / pivots[column]
            # As in GPTQ: columns after it compensate the error, in the block now and behind it at
            # its end.
            rest[:, column:end].addr_(error, spread[column, column:end], alpha=-1)
            rest[:, column].masked_fill_(gone, 0.0)  # removes rounding errors
            lost[:, column - begin] = error
        rest[:, end:].addmm_(lost, spread[begin:end, end:], alpha=-1)
    return rest


def _spread(gram: torch.Tensor) -> torch.Tensor | None:
    """Return the upper Cholesky factor of the inverse, float32; None if there is none."""
    mean = gram.diagonal().mean()
    # With few calibration rows the Gram matrix is singular: each attempt damps it ten times as
    # much.
    for attempt in range(_ATTEMPTS):
        damped = gram.clone()
        damped.diagonal().add_(_DAMPING * 10**attempt * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if failed:
            continue
        upper: torch.Tensor
        upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
        if not failed and upper.isfinite().all():
            if attempt:
                _log.info("Hessian damped by %g", _DAMPING * 10**attempt)
            return upper.float()
    return None
