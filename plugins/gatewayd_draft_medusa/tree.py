"""Draft tree of head predictions: which are worth verifying, most likely nodes first."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Tree(NamedTuple):
    """Nodes in order of descending probability, so that parents precede their children.

    Attributes:
        parents: index of each one's parent, -1 for those of the first head, shape ``[size]``.
        heads: head of each, which is its depth, shape ``[size]``.
        ranks: 0 for the head's first choice, shape ``[size]``.
    """

    parents: NDArray[np.int32]
    heads: NDArray[np.int64]
    ranks: NDArray[np.int64]


def grow(accuracy: Sequence[Sequence[float]], size: int) -> Tree:
    """Choose the nodes that are most likely to be accepted.

    A node's probability is the product of the accuracies of its head at its rank, and of its
    ancestors' (Cai et al. 2024, arXiv 2401.10774, appendix C). Any prefix of the result is the best
    tree of its size.

    Args:
        accuracy: how often each head's first, second, ... choice was right.
        size: maximum number of nodes.
    """
    nodes: list[tuple[int, int, int]] = []
    waiting: list[tuple[float, int, int, int, float]] = []

    def offer(parent: int, head: int, rank: int, before: float) -> None:
        if head < len(accuracy) and rank < len(accuracy[head]):
            heappush(waiting, (-before * accuracy[head][rank], parent, head, rank, before))

    # Best-first search: a node is offered once its parent and the better rank beside it are chosen,
    # and it is at most as likely as either.
    offer(-1, 0, 0, 1.0)
    while waiting and len(nodes) < size:
        negated, parent, head, rank, before = heappop(waiting)
        nodes.append((parent, head, rank))
        offer(len(nodes) - 1, head + 1, 0, -negated)
        offer(parent, head, rank + 1, before)
    parents, heads, ranks = np.array(nodes, np.int64).T
    return Tree(parents.astype(np.int32), heads, ranks)
