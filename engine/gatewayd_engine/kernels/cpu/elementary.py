"""Elementary functions of vectors of float32: exponential, activations, soft caps."""

from __future__ import annotations

import math
from collections.abc import Callable

from llvmlite import ir

from gatewayd_engine.kernels.llvm.builder import F32, I32, KernelFunction, Value

_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
"""Minimax polynomial of exp on [-ln2/2, ln2/2]; source: Cephes, expf."""
_LEAST, _MOST = -87.33, 88.37
"""Below, the result would be denormal; above, its exponent overflows."""
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
"""Abramowitz and Stegun, 7.1.26: absolute error below 1.5e-7."""


def exp(f: KernelFunction, x: Value) -> Value:
    """``e**x`` of a vector, within two units in the last place; NaN stays NaN."""
    lanes = x.ir.type.count
    held = f.choose(x < _LEAST, f.floats(lanes, _LEAST), x)
    held = f.choose(held > _MOST, f.floats(lanes, _MOST), held)
    # NaN cannot be converted to a whole number.
    rounded = f.overloaded("llvm.rint", held * _LOG2_E)
    n = f.choose(held.equals(held), rounded, f.floats(lanes, 0.0))
    r = f.fma(n, f.floats(lanes, -_LN2_HIGH), held)
    r = f.fma(n, f.floats(lanes, -_LN2_LOW), r)
    poly = f.floats(lanes, _EXP[0])
    for factor in _EXP[1:]:
        poly = f.fma(poly, r, f.floats(lanes, factor))
    near = f.fma(poly, r * r, r) + 1.0
    exponent = f.convert(n, "fptosi", ir.VectorType(I32, lanes))
    power = f.bits_as((exponent + 127) << 23, ir.VectorType(F32, lanes))
    # Masked scores have no weight at all.
    return f.choose(x < _LEAST, f.floats(lanes, 0.0), near * power)


def tanh(f: KernelFunction, x: Value) -> Value:
    """Hyperbolic tangent of a vector."""
    one = f.floats(x.ir.type.count, 1.0)
    return one - f.floats(x.ir.type.count, 2.0) / (exp(f, x * 2.0) + 1.0)


def silu(f: KernelFunction, x: Value) -> Value:
    """``x * sigmoid(x)``."""
    return _over_one_plus_exp(f, x, x * -1.0)


def gelu_tanh(f: KernelFunction, x: Value) -> Value:
    """GELU by its tanh approximation, as ``x * sigmoid(2u)``; source: arXiv 1606.08415."""
    lanes = x.ir.type.count
    cubic = f.fma(x * x * x, f.floats(lanes, 0.044715), x)
    return _over_one_plus_exp(f, x, cubic * (-2.0 * math.sqrt(2 / math.pi)))


def _over_one_plus_exp(f: KernelFunction, x: Value, power: Value) -> Value:
    """``x / (1 + e**power)``, which is zero for huge powers: ``exp`` is finite for all."""
    infinity = f.floats(x.ir.type.count, math.inf)
    return x / f.choose(power > _MOST, infinity, exp(f, power) + 1.0)


def gelu(f: KernelFunction, x: Value) -> Value:
    """Exact GELU, ``x * Phi(x)``; source: arXiv 1606.08415."""
    lanes = x.ir.type.count
    scaled = x * math.sqrt(0.5)
    size = f.most(scaled, scaled * -1.0)
    t = f.floats(lanes, 1.0) / f.fma(size, f.floats(lanes, 0.3275911), f.floats(lanes, 1.0))
    poly = f.floats(lanes, _ERF[0])
    for factor in _ERF[1:]:
        poly = f.fma(poly, t, f.floats(lanes, factor))
    tail = poly * t * exp(f, size * size * -1.0)
    # Phi(x) is half the tail for negative x, and one less it for positive x.
    low = tail * 0.5
    return x * f.choose(x < 0.0, low, f.floats(lanes, 1.0) - low)


ACTIVATIONS: dict[str, Callable[[KernelFunction, Value], Value]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu": gelu,
}
"""Activations of gated feed-forward parts, by their names in ``ModelSpec``."""
