"""Random choice of a token among those that top-k, top-p and min-p keep; see ``sampling.sampler``.

In the order of their probabilities, equal ones by index, all filters keep the first tokens. Nothing
is sorted: a token is found by the number and the weight of those before it, digit by digit of its
key (radix selection). Keys are the bits of scaled logits, which are 0 at most: the likeliest token
has the smallest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from llvmlite import ir

from gatewayd_engine.kernels.cpu.draw import exp
from gatewayd_engine.kernels.llvm.builder import F32, F64, I32, I64, KernelFunction, Pointer, Value

_BINS = 256
_SHIFTS = (24, 16, 8, 0)
"""Of the digits of a key, the most significant first."""
_NUMBER, _WEIGHT, _LARGEST, _FIELDS = range(4)
"""Of the tokens in a bin: how many they are, the sum of their weights and the largest of these."""
_RANK, _BEFORE, _OWN, _RESULTS = range(4)
"""Of a token that was found: tokens before it, their weight and its own."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of a row; float32 but for ``top_k``, which is an int64."""

    top_k: Value
    top_p: Value
    min_p: Value


class FilteredDraw:
    """Adds to a module what draws tokens, for rows of ``count`` logits, ``lanes`` or more.

    Args:
        module: to which it adds a function.
        count: logits of a row.
        lanes: of a vector of float32.
    """

    def __init__(self, module: ir.Module, count: int, lanes: int) -> None:
        self._count, self._lanes = count, lanes
        bins = [F64]
        kinds = [[F32], F32, F32, bins, F64, F64, F64, [F64]]
        f = KernelFunction(module, "last_within", kinds, returns=I64)
        logits, largest, temperature, *rest = f.arguments
        self._last_within = _search(_Row(f, logits, count, lanes // 2, largest, temperature), *rest)

    def emit(
        self,
        f: KernelFunction,
        logits: Pointer,
        largest: Value,
        temperature: Value,
        uniform: Value,
        filters: Filters,
    ) -> Value:
        """Return the token that ``sampler.sample`` draws, unless sums differ in their last bits.

        Args:
            f: function under construction.
            logits: of the row, float32.
            largest: of these.
            temperature: above 0, float32.
            uniform: float64 in [0, 1).
            filters: at least one of them.
        """
        row = _Row(f, logits, self._count, self._lanes // 2, largest, temperature)
        bins, found = f.scratch(F64, _FIELDS * _BINS), f.scratch(F64, _RESULTS)
        row.tally(bins)

        def last_within(most: Value, weight: Value, least: Value) -> Value:
            given = logits, largest, temperature, bins, most, weight, least, found
            return f.call(self._last_within, *given)

        endless, zero = f.constant(F64, math.inf), f.constant(F64, 0.0)
        most = f.choose(filters.top_k > 0, f.convert(filters.top_k, "sitofp", F64), endless)
        least = f.convert(filters.min_p, "fpext", F64)
        total = f.variable(zero)
        with f.loop(0, _BINS) as at:
            total.set(total.get() + bins[at * _FIELDS + _WEIGHT])
        # Shares are of what top-k keeps.
        with f.when((filters.top_k > 0) & (filters.top_p < 1.0)):
            last_within(most, endless, zero)
            total.set(found[_BEFORE] + found[_OWN])
        share = f.convert(filters.top_p, "fpext", F64) * total.get()
        # The largest number below, as the weight before a token must be less than the share.
        below = f.bits_as(f.bits_as(share, I64) - 1, F64)
        last_within(most, f.choose(filters.top_p < 1.0, below, endless), least)
        kept = found[_BEFORE] + found[_OWN]
        return last_within(found[_RANK] + 1.0, uniform * kept, least)


class _Row:
    """Tokens of a row, in a function under construction; vectors have ``half`` tokens."""

    def __init__(
        self,
        f: KernelFunction,
        logits: Pointer,
        count: int,
        half: int,
        largest: Value,
        temperature: Value,
    ) -> None:
        self._logits, self._count = logits, count
        self._largest, self._temperature = f.splat(largest, half), f.splat(temperature, half)
        self.f, self.half = f, half

    @contextmanager
    def _tokens(self, prefix: Value | None, shift: int) -> Iterator[tuple[Value, ...]]:
        """Emit a loop over vectors that have tokens with a prefix of their keys, None for all.

        Gives the index of the first token, the keys, and the weights, 0 for all other tokens.
        """
        f, half = self.f, self.half
        with f.loop(0, self._count, half) as start:
            # The last vector overlaps the one before.
            at = f.least(start, f.index(self._count - half))
            is_own = f.splat(at, half) + f.numbers(range(half)) >= f.splat(start, half)
            scaled = (self._logits.vector(half, at) - self._largest) / self._temperature
            # Without the sign, which -0 has as well.
            keys = f.bits_as(scaled, ir.VectorType(I32, half)) << 1
            if prefix is not None:
                is_own = is_own & (keys >> shift).equals(f.splat(prefix, half))
            with f.when(f.bits_as(is_own, ir.IntType(half)).differs(0)):
                weights = exp(f, f.convert(scaled, "fpext", ir.VectorType(F64, half)))
                yield at, keys, f.choose(is_own, weights, f.like(weights, 0.0))

    def tally(self, bins: Pointer, prefix: Value | None = None, level: int = 0) -> None:
        """Fill the bins of a digit with the tokens whose digits before it are ``prefix``."""
        f = self.f
        with f.loop(0, _FIELDS * _BINS) as at:
            bins[at] = 0.0
        with self._tokens(prefix, _SHIFTS[level] + 8) as (_, keys, weights):
            digits = (keys >> _SHIFTS[level]) & (_BINS - 1)
            for lane in range(self.half):
                weight = f.lane(weights, lane)
                bin_ = bins + f.convert(f.lane(digits, lane), "zext", I64) * _FIELDS
                bin_[_NUMBER] = bin_[_NUMBER] + _one_if(f, weight > 0.0)
                bin_[_WEIGHT] = bin_[_WEIGHT] + weight
                bin_[_LARGEST] = f.most(bin_[_LARGEST], weight)

    @contextmanager
    def each_with(self, key: Value) -> Iterator[tuple[Value, Value]]:
        """Emit code for each token that may have a key: its index, and its weight or 0."""
        with self._tokens(key, 0) as (at, _, weights):
            yield at, weights


def _search(
    row: _Row, bins: Pointer, most: Value, limit: Value, least: Value, found: Pointer
) -> KernelFunction:
    """Emit the search of a row's last token within limits; of the first token if it is beyond them.

    Args:
        row: of the function under construction, which returns the token's index.
        bins: of the first digit, filled.
        most: there are fewer tokens before it; float64, as are all numbers.
        limit: their weight is at most this.
        least: its own weight is at least this.
        found: gets what was found, see ``_RANK``.
    """
    f = row.f
    rank, before = f.variable(f.constant(F64, 0.0)), f.variable(f.constant(F64, 0.0))
    seen, summed = f.variable(rank.get()), f.variable(before.get())

    def is_within(largest: Value) -> Value:
        within = (seen.get() < most) & (summed.get() <= limit) & (largest >= least)
        return (largest > 0.0) & (within | seen.get().equals(0.0))

    prefix = f.variable(f.constant(I32, 0))
    lower = f.scratch(F64, _FIELDS * _BINS)
    for level in range(len(_SHIFTS)):
        if level:
            row.tally(lower, prefix.get(), level)
            bins = lower
        seen.set(rank.get())
        summed.set(before.get())
        digit = f.variable(0)
        with f.loop(0, _BINS) as at:
            bin_ = bins + at * _FIELDS
            with f.when(is_within(bin_[_LARGEST])):
                digit.set(at)
                rank.set(seen.get())
                before.set(summed.get())
            seen.set(seen.get() + bin_[_NUMBER])
            summed.set(summed.get() + bin_[_WEIGHT])
        prefix.set((prefix.get() << 8) | f.convert(digit.get(), "trunc", I32))
    # Tokens of this key are alike, and follow one another by their indices.
    index, own = f.variable(0), f.variable(f.constant(F64, 0.0))
    seen.set(rank.get())
    summed.set(before.get())
    with row.each_with(prefix.get()) as (start, weights):
        for lane in range(row.half):
            weight = f.lane(weights, lane)
            with f.when(is_within(weight)):
                index.set(start + lane)
                rank.set(seen.get())
                before.set(summed.get())
                own.set(weight)
            seen.set(seen.get() + _one_if(f, weight > 0.0))
            summed.set(summed.get() + weight)
    found[_RANK], found[_BEFORE], found[_OWN] = rank.get(), before.get(), own.get()
    return f.finish(index.get())


def _one_if(f: KernelFunction, condition: Value) -> Value:
    return f.choose(condition, f.constant(F64, 1.0), f.constant(F64, 0.0))
