"""Which guesses of which heads are worth verifying: a tree, the likeliest nodes first."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Tree(NamedTuple):
    """Nodes in the order of how likely they are; so parents stand before their children.

    Attributes:
        parents: -1 for those of the first head, shape ``[size]``.
        heads: whose guess each is: its depth, shape ``[size]``.
        ranks: 0 for the head's first choice, shape ``[size]``.
    """

    parents: NDArray[np.int32]
    heads: NDArray[np.int64]
    ranks: NDArray[np.int64]


def grow(accuracy: Sequence[Sequence[float]], size: int) -> Tree:
    """Choose the nodes that are likeliest to be reached.

    A node's likelihood is the product of how often its head's choice of its rank was right, and
    of its parents' (Cai et al. 2024, arXiv 2401.10774, appendix C). Any beginning of the answer
    is the best tree of its size.

    Args:
        accuracy: how often each head's first, second, ... choice was right.
        size: most nodes.
    """
    nodes: list[tuple[int, int, int]] = []
    waiting: list[tuple[float, int, int, int, float]] = []

    def offer(parent: int, head: int, rank: int, before: float) -> None:
        if head < len(accuracy) and rank < len(accuracy[head]):
            heappush(waiting, (-before * accuracy[head][rank], parent, head, rank, before))

    offer(-1, 0, 0, 1.0)
    while waiting and len(nodes) < size:
        negated, parent, head, rank, before = heappop(waiting)
        nodes.append((parent, head, rank))
        offer(len(nodes) - 1, head + 1, 0, -negated)
        offer(parent, head, rank + 1, before)
    parents, heads, ranks = np.array(nodes, np.int64).T
    return Tree(parents.astype(np.int32), heads, ranks)
