"""Counter-based random numbers that depend on seed and position only.

A sequence samples its token at position p with ``uniform(seed, p)``, so a seed gives the same
tokens whatever else is in the batch, in any order, and after preemption. Speculative decoding needs
more numbers per position; they come from separate streams.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply SplitMix64's finaliser (Steele, Lea, Flood 2014), a bijection that scrambles bits."""
    with np.errstate(over="ignore"):
        value = value + _GOLDEN
        value = (value ^ (value >> np.uint64(30))) * _MIX_1
        value = (value ^ (value >> np.uint64(27))) * _MIX_2
        return value ^ (value >> np.uint64(31))


TOKEN, ACCEPT, DRAFT = range(3)
"""Streams: a sequence's own tokens, acceptance of sampled drafts, and sampling by drafters."""


def uniform(
    seeds: NDArray[np.uint64], positions: NDArray[np.int64], stream: int = TOKEN
) -> NDArray[np.float64]:
    """Return one number in [0, 1) for each pair, of the broadcast shape."""
    # Positions are below 2**40, so that streams of one seed never coincide.
    bits = mix(mix(seeds) ^ (positions.astype(np.uint64) | np.uint64(stream << 40)))
    # The upper 53 bits, as many as a float64 represents exactly, so that the result is below 1.
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def fork_seed(seed: int, choice: int) -> int:
    """Derive the seed of a choice of a request; choice 0 has the request's own seed."""
    if choice == 0:
        return seed
    return int(mix(mix(np.array([seed], np.uint64)) + np.uint64(choice))[0])
