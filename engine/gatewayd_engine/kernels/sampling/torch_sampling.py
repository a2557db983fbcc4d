"""Sampling in torch: noise that depends on seed, position and token, and the sampling filters.

A token is sampled as the argmax of logit / temperature + Gumbel noise (Gumbel 1954), which samples
from the softmax without normalising it: blocks of the vocabulary can be processed independently,
and equal seeds give equal tokens whatever the batch is.
"""

from __future__ import annotations

import torch

GREEDY_BELOW = 1e-7
"""Sampling is greedy at temperatures below this."""

_GOLDEN, _MIX_1, _MIX_2 = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
_LOW_BITS = 0xFFFFFFFF


def keys(seed: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Derive the same 64-bit keys from seeds and positions as ``gatewayd_engine.sampling.random``.

    Args:
        seed: the bits of a uint64, as int64.
        position: int64, of the same shape.
    """
    return _mix(_mix(seed) ^ position)


def _mix(value: torch.Tensor) -> torch.Tensor:
    """Apply SplitMix64's finaliser in signed integers, which overflow to the same bits."""
    value = value + _GOLDEN
    value = (value ^ _shifted(value, 30)) * _MIX_1
    value = (value ^ _shifted(value, 27)) * _MIX_2
    return value ^ _shifted(value, 31)


def _shifted(value: torch.Tensor, by: int) -> torch.Tensor:
    """Shift right, filling with zeros."""
    return value >> by & (1 << 64 - by) - 1


def bits(key: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """Return 32 random bits for each token, as int64, of the broadcast shape.

    Three rounds of multiplication and shift whose constants were searched for least bias (Wellons,
    "triple32", 2018); the key's halves are mixed in before the first and the second.
    """
    # 32-bit arithmetic in int64, as torch has few operations on unsigned integers.
    value = token ^ key & _LOW_BITS
    value = (value ^ value >> 17) * 0xED5AD4BB & _LOW_BITS
    value = value ^ _shifted(key, 32)
    value = (value ^ value >> 11) * 0xAC4C1B51 & _LOW_BITS
    value = (value ^ value >> 15) * 0x31848BAB & _LOW_BITS
    return value ^ value >> 14


def gumbel(random: torch.Tensor) -> torch.Tensor:
    """Convert 32 random bits each to Gumbel noise, float32.

    The bits become v in (0, 1), then -log(-log(1 - v)): large noise comes from small v, where
    floating point has the most precision.
    """
    uniform = (random.double() + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-uniform)).float()


def draw(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    lowest: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
) -> torch.Tensor:
    """Sample a token for each row from those whose logits are at least ``lowest``.

    Args:
        logits: float32 without NaN, shape ``[n, vocab]``.
        temperature: float32, shape ``[n]``.
        lowest: float32, shape ``[n]``.
        seed: the bits of a uint64, as int64, shape ``[n]``.
        position: int64, shape ``[n]``.

    Returns:
        Token ids, int64, shape ``[n]``.
    """
    token = torch.arange(logits.shape[1], device=logits.device)
    # One noise for each row and token, independent of what else is in the batch.
    noise = gumbel(bits(keys(seed, position).unsqueeze(1), token))
    score = below_best(logits, temperature) + noise
    score = torch.where(logits >= lowest.unsqueeze(1), score, -torch.inf)
    return torch.where(temperature < GREEDY_BELOW, logits.argmax(-1), score.argmax(-1))


def below_best(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Return each logit minus the largest of its row, divided by the temperature."""
    best = logits.amax(-1, keepdim=True)
    return torch.where(logits == best, 0.0, (logits - best) / temperature.unsqueeze(1))


def pivots(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """Return the smallest logit of each row that passes the filters.

    Args:
        logits: float32 without NaN, shape ``[n, vocab]``.
        temperature: float32, shape ``[n]``.
        top_k: int32, shape ``[n]``.
        top_p: float32, shape ``[n]``.
        min_p: float32, shape ``[n]``.

    Returns:
        float32, shape ``[n]``; minus infinity if all are kept.
    """
    vocab = logits.shape[1]
    ordered = logits.sort(-1, descending=True).values
    best = ordered[:, :1]
    limit = torch.where((top_k > 0) & (top_k < vocab), top_k, vocab).long().unsqueeze(1)
    kept = ordered >= ordered.gather(1, limit - 1)
    weight = below_best(ordered, temperature).double().exp() * kept
    # The weight of likelier tokens: the token at which the sum reaches the target still passes.
    before = weight.cumsum(-1) - weight
    target = top_p.double().unsqueeze(1) * weight.sum(-1, keepdim=True)
    kept &= (before < target) | (top_p >= 1.0).unsqueeze(1)
    kept &= weight >= min_p.double().unsqueeze(1)
    # The likeliest token always passes, whatever was rounded.
    kept |= ordered == best
    lowest = torch.where(kept, ordered, torch.inf).amin(-1)
    is_open = (top_k <= 0) & (top_p >= 1.0) & (min_p <= 0.0)
    return torch.where(is_open | ~best.squeeze(1).isfinite(), -torch.inf, lowest)
