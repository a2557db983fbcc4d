"""RMS norm of a row in vector code. Source: arXiv 1910.07467."""

from __future__ import annotations

from gatewayd_engine.kernels.llvm.builder import KernelFunction, Pointer, Value
from gatewayd_engine.kernels.llvm.reductions import lane_sum

_CHAINS = 4
"""Independent sums of squares, as one would wait for each addition."""


def inverse_rms(f: KernelFunction, x: Pointer, size: int, lanes: int, eps: float) -> Value:
    """Return ``1 / sqrt(mean(x**2) + eps)`` of ``size`` numbers."""
    vectors = size // lanes
    chains = [f.variable(f.zeros(lanes)) for _ in range(min(_CHAINS, vectors))]
    whole = vectors // len(chains) * len(chains)
    with f.loop(0, whole * lanes, len(chains) * lanes) as at:
        for i, chain in enumerate(chains):
            value = x.vector(lanes, at + i * lanes)
            chain.set(f.fma(value, value, chain.get()))
    for i in range(vectors - whole):
        value = x.vector(lanes, (whole + i) * lanes)
        chains[0].set(f.fma(value, value, chains[0].get()))
    total = chains[0].get()
    for chain in chains[1:]:
        total = total + chain.get()
    mean = lane_sum(f, total) * (1.0 / size) + eps
    one = f.like(mean, 1.0)
    return one / f.overloaded("llvm.sqrt", mean)


def normalise(
    f: KernelFunction, x: Pointer, weight: Pointer, out: Pointer, size: int, lanes: int, eps: float
) -> None:
    """Write the norm of a row times ``weight`` to ``out``, which may be ``x``."""
    factor = f.splat(inverse_rms(f, x, size, lanes, eps), lanes)
    with f.loop(0, size, lanes) as at:
        out.store(x.vector(lanes, at) * factor * weight.vector(lanes, at), at)


def add_normalised(
    f: KernelFunction, x: Pointer, weight: Pointer, onto: Pointer, size: int, lanes: int, eps: float
) -> None:
    """Add the norm of a row times ``weight`` onto another row."""
    factor = f.splat(inverse_rms(f, x, size, lanes, eps), lanes)
    with f.loop(0, size, lanes) as at:
        normed = x.vector(lanes, at) * factor * weight.vector(lanes, at)
        onto.store(onto.vector(lanes, at) + normed, at)
