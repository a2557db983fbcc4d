"""Sums and extremes over the lanes of vectors, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gatewayd_engine.kernels.llvm.builder import KernelFunction, Value


def sums_in_blocks(f: KernelFunction, vectors: Sequence[Value]) -> Value:
    """Add the lanes of four vectors within each block of four lanes.

    Returns:
        A vector whose blocks hold four sums each, one of each vector.
    """
    a, b, c, d = vectors
    lanes = a.ir.type.count
    return _added(f, _added(f, a, b, lanes), _added(f, c, d, lanes), lanes)


def _added(f: KernelFunction, a: Value, b: Value, lanes: int) -> Value:
    """Add neighbours within blocks of four lanes: two sums of ``a``, then two of ``b``."""
    blocks = range(0, lanes, 4)
    evens = [at + i for at in blocks for i in (0, 2, lanes, lanes + 2)]
    return f.shuffle(a, b, evens) + f.shuffle(a, b, [i + 1 for i in evens])


def sums_of_blocks(f: KernelFunction, vectors: Sequence[Value]) -> Value:
    """Add the blocks of ``n / 4`` vectors of ``n`` lanes; one vector's sum in each block."""
    level = list(vectors)
    lanes = level[0].ir.type.count
    while len(level) > 1:
        evens = [at + i for at in range(0, 2 * lanes, 8) for i in range(4)]
        odds = [i + 4 for i in evens]
        level = [
            f.shuffle(a, b, evens) + f.shuffle(a, b, odds)
            for a, b in zip(level[::2], level[1::2], strict=True)
        ]
    return level[0]


def lane_sum(f: KernelFunction, vector: Value) -> Value:
    """Add the lanes of one vector, pairwise."""
    return _folded(f, vector, lambda a, b: a + b)


def largest_lane(f: KernelFunction, vector: Value) -> Value:
    """Return the largest lane."""
    return _folded(f, vector, f.most)


def _folded(f: KernelFunction, vector: Value, combine: Callable[[Value, Value], Value]) -> Value:
    lanes = vector.ir.type.count
    while lanes > 1:
        lanes //= 2
        low = f.shuffle(vector, vector, range(lanes))
        vector = combine(low, f.shuffle(vector, vector, range(lanes, 2 * lanes)))
    return f.lane(vector, 0)
