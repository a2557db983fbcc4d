"""Random numbers that depend on the seed and the position alone.

A sequence draws its token at position p from ``uniform(seed, p)``, so a seed repeats whatever
else is in the batch, in whatever order, and after preemption. Speculation needs more numbers at
a position; they come from streams of their own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that looks random."""
    with np.errstate(over="ignore"):
        value = value + _GOLDEN
        value = (value ^ (value >> np.uint64(30))) * _MIX_1
        value = (value ^ (value >> np.uint64(27))) * _MIX_2
        return value ^ (value >> np.uint64(31))


TOKEN, ACCEPT, DRAFT = range(3)
"""Streams: a sequence's own tokens, whether drawn drafts are kept, and what drafters draw."""


def uniform(
    seeds: NDArray[np.uint64], positions: NDArray[np.int64], stream: int = TOKEN
) -> NDArray[np.float64]:
    """One number in [0, 1) for each pair, of the shape that both broadcast to."""
    bits = mix(mix(seeds) ^ (positions.astype(np.uint64) | np.uint64(stream << 40)))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def fork_seed(seed: int, choice: int) -> int:
    """The seed of another choice of the same request; choice 0 keeps the request's own."""
    if choice == 0:
        return seed
    return int(mix(mix(np.array([seed], np.uint64)) + np.uint64(choice))[0])
