"""Draft tree of a chain with alternatives: which of them are worth verifying."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class DraftExpansion:
    """Decides whether it is worth it to extend the chains.

    Args:
        limits: drafts that each row can use, shape ``[n]``.
    """

    def __init__(self, limits: NDArray[np.int64]) -> None:
        self._limits = limits
        self._reached = np.ones(len(limits), np.float32)
        self._likelihoods: list[NDArray[np.float32]] = []

    def add_depth(self, shares: NDArray[np.float32]) -> None:
        """Add one depth.

        Args:
            shares: probabilities of the choices, in descending order, shape ``[n, width]``.
        """
        likelihood = self._reached[:, None] * shares
        self._likelihoods.append(likelihood)
        self._reached = likelihood[:, 0]

    def is_worth_extending(self, least: float) -> bool:
        """Whether any row's chain is at least that likely, and may yield useful drafts.

        Deeper tokens are never more likely than the chain so far: a row that has enough drafts
        which are as likely will not use any.
        """
        better = sum(np.count_nonzero(of >= self._reached[:, None], 1) for of in self._likelihoods)
        return bool(((self._reached >= least) & (better < self._limits)).any())


def likeliest(
    tokens: NDArray[np.int64], shares: NDArray[np.float32], most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sort drafts by their probability of being accepted.

    That is the product of the drafter's probabilities of each and those before it, which is a good
    estimate of the acceptance rate (Li et al. 2024, arXiv 2406.16858).

    Args:
        tokens: by depth and choice, shape ``[n, depth, width]``; only first choices are extended.
        shares: the drafter's probability of each, shape ``[n, depth, width]``.
        most: number of drafts to return, at most ``depth * width``.

    Returns:
        Tokens and the index of each one's parent, -1 for none, each of shape ``[n, most]``. Any
        prefix of them is a tree.
    """
    n, _, width = tokens.shape
    reached = np.cumprod(shares[:, :, 0], 1)
    # Probability of the chain before each depth.
    reached = np.concatenate((np.ones((n, 1), shares.dtype), reached[:, :-1]), 1)
    likelihood = (reached[:, :, None] * shares).reshape(n, -1)
    # Stable, so that parents precede children of equal probability.
    order = np.argsort(-likelihood, 1, kind="stable")
    # The inverse permutation: the rank of each draft.
    place = np.argsort(order, 1)
    kept = order[:, :most]
    # Only first choices are extended, so a parent is the first choice of the depth above.
    before = np.take_along_axis(place, np.maximum((kept // width - 1) * width, 0), 1)
    parents = np.where(kept < width, -1, before)
    return np.take_along_axis(tokens.reshape(n, -1), kept, 1), parents
