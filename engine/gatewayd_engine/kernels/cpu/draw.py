"""Random choice of a token from a row's logits, without filters; see ``sampling.sampler``.

Weights and their sums are float64, as those of ``sampler.sample`` in torch: the two choose the same
token, unless a random number falls between sums that differ in their last bits.
"""

from __future__ import annotations

from llvmlite import ir

from gatewayd_engine.kernels.llvm.builder import F64, I64, KernelFunction, Pointer, Value
from gatewayd_engine.kernels.llvm.reductions import lane_sum

_LOG2_E = 1.4426950408889634073599
_LN2_HIGH, _LN2_LOW = 6.93145751953125e-1, 1.42860682030941723212e-6
_P = (1.26177193074810590878e-4, 3.02994407707441961300e-2, 9.99999999999999999910e-1)
_Q = (
    3.00198505138664455042e-6,
    2.52448340349684104192e-3,
    2.27265548208155028766e-1,
    2.00000000000000000005e0,
)
"""Rational approximation of exp on [-ln2/2, ln2/2]; source: Cephes, exp."""
_LEAST = -708.0
"""Below, the result would be denormal."""


def draw(
    f: KernelFunction,
    row: Pointer,
    count: int,
    lanes: int,
    largest: Value,
    temperature: Value,
    uniform: Value,
) -> Value:
    """Return the first index whose cumulative weight exceeds ``uniform`` times the total.

    Args:
        f: function under construction.
        row: logits, float32.
        count: their number, at least ``lanes``.
        lanes: of a vector of float32.
        largest: of the logits, finite.
        temperature: above 0, float32.
        uniform: float64 in [0, 1).
    """
    half = lanes // 2

    def weights(start: Value) -> Value:
        """Return the weights of ``half`` tokens; 0 for those of the vector before."""
        at = f.least(start, f.index(count - half))
        scaled = (row.vector(half, at) - f.splat(largest, half)) / f.splat(temperature, half)
        made = exp(f, f.convert(scaled, "fpext", ir.VectorType(F64, half)))
        ids = f.splat(at, half) + f.numbers(range(half))
        return f.choose(ids >= f.splat(start, half), made, f.like(made, 0.0))

    total = f.variable(f.constant(F64, 0.0))
    with f.loop(0, count, half) as start:
        total.set(total.get() + lane_sum(f, weights(start)))
    target = total.get() * uniform
    # The last with weight before which there is not more than the target: rounding cannot miss it.
    found, before, summed = (
        f.variable(0),
        f.variable(f.constant(F64, 0.0)),
        f.variable(f.constant(F64, 0.0)),
    )
    with f.loop(0, count, half) as start:
        own = lane_sum(f, weights(start))
        with f.when((summed.get() <= target) & (own > 0.0)):
            found.set(start)
            before.set(summed.get())
        summed.set(summed.get() + own)
    made = weights(found.get())
    first = f.least(found.get(), f.index(count - half))
    index, so_far = f.index(0), before.get()
    for lane in range(half):
        weight = f.lane(made, lane)
        is_here = (so_far <= target) & (weight > 0.0)
        index = f.choose(is_here, first + lane, index)
        so_far = so_far + weight
    return index


def exp(f: KernelFunction, x: Value) -> Value:
    """Return ``e**x`` of a vector of float64, 0 at most, within two units in the last place."""
    held = f.choose(x > _LEAST, x, f.like(x, _LEAST))
    n = f.overloaded("llvm.rint", held * _LOG2_E)
    r = held - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    square = r * r
    p, q = f.like(x, _P[0]), f.like(x, _Q[0])
    for factor in _P[1:]:
        p = p * square + factor
    for factor in _Q[1:]:
        q = q * square + factor
    p = p * r
    near = p / (q - p) * 2.0 + 1.0
    lanes = x.ir.type.count
    exponent = f.convert(n, "fptosi", ir.VectorType(I64, lanes))
    power = f.bits_as((exponent + 1023) << 52, ir.VectorType(F64, lanes))
    # Masked logits have no weight at all.
    return f.choose(x > _LEAST, near * power, f.like(x, 0.0))
