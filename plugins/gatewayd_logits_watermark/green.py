"""Green lists: the arithmetic that marking and detecting share.

The tokens before a position are hashed with the tenant's key (BLAKE2, so that known lists reveal
nothing about the key or about other lists) to two numbers, which choose from the vocabulary by one
multiplication, one addition and one comparison per entry: multiply-shift hashing (Dietzfelbinger et
al. 1997), in which any two entries are independent. Everything is arithmetic modulo 2^32 in signed
integers, the same in numpy and in torch on any device.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


class Hasher:
    """Green lists of one key.

    Args:
        key: of a tenant, at most 64 bytes.
    """

    def __init__(self, key: bytes) -> None:
        self._start = blake2b(digest_size=8, key=key)

    def __call__(self, context: bytes) -> bytes:
        """Return the multiplier and addend of the list after some tokens.

        Args:
            context: the ids, int64, concatenated.

        Returns:
            Two int32; the last bit of the multiplier is ignored, see ``is_green``.
        """
        drawn = self._start.copy()
        drawn.update(context)
        return drawn.digest()


def numbers_of(tokens: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return a fixed pseudorandom number for each token id: SplitMix64's finalizer, upper half.

    Otherwise adjacent ids would be green together.
    """
    value = tokens.astype(np.uint64) + _GOLDEN
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return ((value ^ (value >> np.uint64(31))) >> np.uint64(32)).astype(np.uint32).view(np.int32)


def threshold(gamma: float) -> int:
    """Return the number below which a fraction ``gamma`` of all int32 are."""
    return round(gamma * 2**32) - 2**31


def split(digests: bytes) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return multipliers, made odd, and addends of concatenated digests; each shape ``[n]``."""
    pairs = np.frombuffer(digests, "<i4").reshape(-1, 2)
    return pairs[:, 0] | np.int32(1), pairs[:, 1]


def is_green(
    multipliers: NDArray[np.int32],
    addends: NDArray[np.int32],
    tokens: NDArray[np.int64],
    gamma: float,
) -> NDArray[np.bool_]:
    """Whether tokens are in their lists, all shape ``[n]``."""
    return multipliers * numbers_of(tokens) + addends < threshold(gamma)
