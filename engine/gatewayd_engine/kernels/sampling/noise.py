"""Gumbel noise by seed, position and token in Triton; ``torch_sampling`` makes the same bits."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _mix(value: tl.tensor) -> tl.tensor:
    """Apply the finaliser of SplitMix64."""
    value = value + 0x9E3779B97F4A7C15
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def keys(seed: tl.tensor, position: tl.tensor) -> tl.tensor:
    """Derive a 64-bit key, uint64, from the bits of a seed and a position, both int64."""
    # Mixed twice: plain combinations of small seeds and positions would collide.
    mixed = _mix(seed.to(tl.uint64, bitcast=True))
    return _mix(mixed ^ position.to(tl.uint64, bitcast=True))


@triton.jit
def bits(key: tl.tensor, token: tl.tensor) -> tl.tensor:
    """Return 32 random bits for each token, as uint32."""
    # Rounds of a 32-bit hash (triple32): 64-bit multiplications for each token would take longer.
    value = token.to(tl.uint32) ^ key.to(tl.uint32)
    value = (value ^ (value >> 17)) * 0xED5AD4BB
    value = value ^ (key >> 32).to(tl.uint32)
    value = (value ^ (value >> 11)) * 0xAC4C1B51
    value = (value ^ (value >> 15)) * 0x31848BAB
    return value ^ (value >> 14)


@triton.jit
def gumbel(random: tl.tensor) -> tl.tensor:
    """Convert random bits to noise, float32: -log(-log(1 - v)) with v in (0, 1) from the bits.

    1 - v is computed from the inverted bits, which is exact where v is close to 1; where v is small
    its logarithm is a series, because 1 - v has lost the digits that determine the largest noise.
    """
    # The factor is 2 ** -32. Half a step more keeps v from 0, whose noise would be infinite.
    v = (random.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    rest = ((random ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    series = v * (1.0 + v * (0.5 + v * (0.33333333 + v * (0.25 + v * 0.2))))
    # Below 1/64 the first omitted term of the series is less than 1e-9 of its sum.
    return -tl.log(tl.where(v < 0.015625, series, -tl.log(rest)))
