"""A chain of guesses with other choices beside each: which of them are worth verifying."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Prospects:
    """Whether it is worth it to look further ahead.

    Args:
        limits: guesses that each row can use, shape ``[n]``.
    """

    def __init__(self, limits: NDArray[np.int64]) -> None:
        self._limits = limits
        self._reached = np.ones(len(limits), np.float32)
        self._likelihoods: list[NDArray[np.float32]] = []

    def add(self, shares: NDArray[np.float32]) -> None:
        """Look one token further.

        Args:
            shares: what the drafter gave to the choices for it, best first, shape ``[n, width]``.
        """
        likelihood = self._reached[:, None] * shares
        self._likelihoods.append(likelihood)
        self._reached = likelihood[:, 0]

    def go_on(self, least: float) -> bool:
        """Whether any row's chain is at least so likely, and may bring something of use.

        Nothing further ahead is likelier than the chain so far: a row that has enough guesses
        which are as likely will use none of it.
        """
        better = sum(np.count_nonzero(of >= self._reached[:, None], 1) for of in self._likelihoods)
        return bool(((self._reached >= least) & (better < self._limits)).any())


def likeliest(
    tokens: NDArray[np.int64], shares: NDArray[np.float32], most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sort guesses by how likely they are to be reached and right.

    That is the product of what the drafter gave each and those before it, which says well enough
    how often it is kept (Li et al. 2024, arXiv 2406.16858).

    Args:
        tokens: by depth and choice, shape ``[n, depth, width]``; only first choices go on.
        shares: what the drafter gave each, shape ``[n, depth, width]``.
        most: guesses to be kept, at most ``depth * width``.

    Returns:
        Tokens and which guess is before each, -1 for none, each of shape ``[n, most]``. Any
        beginning of them is a tree.
    """
    n, _, width = tokens.shape
    reached = np.cumprod(shares[:, :, 0], 1)
    reached = np.concatenate((np.ones((n, 1), shares.dtype), reached[:, :-1]), 1)
    likelihood = (reached[:, :, None] * shares).reshape(n, -1)
    # Stable: of equals the one before stands first.
    order = np.argsort(-likelihood, 1, kind="stable")
    place = np.argsort(order, 1)
    kept = order[:, :most]
    before = np.take_along_axis(place, np.maximum((kept // width - 1) * width, 0), 1)
    parents = np.where(kept < width, -1, before)
    return np.take_along_axis(tokens.reshape(n, -1), kept, 1), parents
