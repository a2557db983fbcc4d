"""Top-k, top-p and min-p filters in Triton: the smallest logit of each row that passes them.

Nothing is sorted: the bits of a float, inverted for negative ones, order as integers, among which
the threshold is found by a multi-way search. Bound by the L2 cache, from which a row of logits is
read once per pass; bfloat16 needs half as many passes. One program per row of logits, so that sums
have the same order whatever the batch is; rows without filters exit at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.early_launch import wait

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import SamplingColumns

_BLOCK = 4096
_WAYS = 4
"""Thresholds tested per pass, which divide the range by one more; each costs as much as a read."""


def pivots(
    logits: torch.Tensor, rows: torch.Tensor, columns: SamplingColumns, *, early: bool = False
) -> torch.Tensor:
    """Return the smallest logit of each row that passes the filters, float32 ``[n]``."""
    lowest = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    _pivots[(len(logits),)](
        logits,
        rows,
        columns.temperature,
        columns.top_k,
        columns.top_p,
        columns.min_p,
        lowest,
        logits.stride(0),
        # Distance of neighbouring keys, at which a search ends.
        # bfloat16 has the upper half of a float32's bits.
        STEP=1 if logits.dtype == torch.float32 else 1 << 16,
        WAYS=_WAYS,
        VOCAB=logits.shape[1],
        BLOCK=_BLOCK,
        EARLY=early,
        num_warps=16,
        launch_pdl=early,
    )
    return lowest


@triton.jit
def _pivots(
    logits: tl.tensor,
    rows: tl.tensor,
    temperatures: tl.tensor,
    top_ks: tl.tensor,
    top_ps: tl.tensor,
    min_ps: tl.tensor,
    lowest: tl.tensor,
    stride: tl.tensor,
    STEP: tl.constexpr,
    WAYS: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    wait(EARLY)
    line = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + line)
    temperature = tl.load(temperatures + row)
    top_k = tl.load(top_ks + row)
    top_p = tl.load(top_ps + row)
    min_p = tl.load(min_ps + row)
    cuts_k = (top_k > 0) & (top_k < VOCAB)
    pivot = float("-inf")
    if (temperature >= 1e-7) & (cuts_k | (top_p < 1.0) | (min_p > 0.0)):
        source = logits + line * stride
        best = _best(source, VOCAB, BLOCK)
        # Without a finite largest logit there is no distribution to cut; see ``Kernels.sample``.
        if (best > float("-inf")) & (best < float("inf")):
            # 64 bits: the difference of two int32 keys may exceed an int32.
            above = _ordered(best).to(tl.int64) + 1
            if cuts_k:
                # Minus infinity as a tensor of the right type: ``best`` is finite.
                everything = _ordered(best * 0.0 + float("-inf")).to(tl.int64)
                found = _search(
                    source, best, temperature, everything, above, top_k, True,
                    STEP, WAYS, VOCAB, BLOCK,
                )  # fmt: skip
                pivot = _value(found)
            if top_p < 1.0:
                # 30 temperatures below the best, a token has 1e-13 of its probability: even a
                # whole vocabulary of such tokens is negligible.
                start = tl.maximum(pivot, best - 30.0 * temperature)
                low = _ordered(start).to(tl.int64)
                # The share is of what top-k has left, as ``low`` is at least its pivot.
                target = top_p * _mass(source, best, temperature, low, VOCAB, BLOCK)
                found = _search(
                    source, best, temperature, low, above, target, False,
                    STEP, WAYS, VOCAB, BLOCK,
                )  # fmt: skip
                pivot = _value(found)
            if min_p > 0.0:
                # exp((logit - best) / temperature) >= min_p, solved for the logit.
                pivot = tl.maximum(pivot, best + temperature * tl.log(min_p))
            # The likeliest token always passes, whatever was rounded.
            pivot = tl.minimum(pivot, best)
    tl.store(lowest + line, pivot)


@triton.jit
def _search(
    source: tl.tensor,
    best: tl.tensor,
    temperature: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    target: tl.tensor,
    COUNTS: tl.constexpr,
    STEP: tl.constexpr,
    WAYS: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return the largest integer from ``low`` to ``high`` above which there is ``target`` or more.

    The target is a number of tokens if it ``COUNTS``, otherwise a weight. There is as much above
    ``low`` but not above ``high``; the two converge until no two logits can be between them, or
    until there is exactly ``target`` above.
    """
    way = 1 + tl.arange(0, WAYS)
    # Each pass reads the row once and counts what is above several thresholds.
    while high - low > STEP:
        bounds = low + (high - low) * way // (WAYS + 1)
        edge = bounds.to(tl.int32)[:, None]
        # Numbers of tokens are exact in float32, too: a vocabulary has far less than 2 ** 24.
        total = tl.zeros((WAYS, BLOCK), tl.float32)
        for start in range(0, VOCAB, BLOCK):
            value, order = _block(source, start, VOCAB, BLOCK)
            weight = tl.exp((value - best) / temperature)
            if COUNTS:
                weight = tl.full((BLOCK,), 1.0, tl.float32)
            total += tl.where(order[None, :] >= edge, weight[None, :], 0.0)
        above = tl.sum(total, 1)
        low = tl.maximum(low, tl.max(tl.where(above >= target, bounds, low), 0))
        high = tl.min(tl.where(above > target, high, tl.where(above == target, low, bounds)), 0)
    return low


@triton.jit
def _mass(
    source: tl.tensor,
    best: tl.tensor,
    temperature: tl.tensor,
    low: tl.tensor,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return the weight of all tokens from ``low`` on, where the likeliest weighs one."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, VOCAB, BLOCK):
        value, order = _block(source, start, VOCAB, BLOCK)
        total += tl.where(order >= low, tl.exp((value - best) / temperature), 0.0)
    return tl.sum(total, 0)


@triton.jit
def _best(source: tl.tensor, VOCAB: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, VOCAB, BLOCK):
        value, _ = _block(source, start, VOCAB, BLOCK)
        largest = tl.maximum(largest, value)
    return tl.max(largest, 0)


@triton.jit
def _block(
    source: tl.tensor, start: tl.tensor, VOCAB: tl.constexpr, BLOCK: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Load a block of logits, with minus infinity for NaN and padding, and their integer keys."""
    token = start + tl.arange(0, BLOCK)
    value = tl.load(source + token, mask=token < VOCAB, other=float("-inf")).to(tl.float32)
    value = tl.where(value == value, value, float("-inf"))
    return value, _ordered(value)


@triton.jit
def _ordered(value: tl.tensor) -> tl.tensor:
    """Map floats to int32 keys of the same order; both zeros have the same key."""
    # Floats compare as their bits if they are positive; the bits of negative ones run backwards.
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(order: tl.tensor) -> tl.tensor:
    """Map an integer key back to its float; see ``_ordered``."""
    order = order.to(tl.int32)
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
