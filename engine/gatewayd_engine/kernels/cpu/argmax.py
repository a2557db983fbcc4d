"""Largest logit of a row and its index, in vector code; soft caps of logits."""

from __future__ import annotations

from gatewayd_engine.kernels.cpu.elementary import tanh
from gatewayd_engine.kernels.llvm.builder import KernelFunction, Pointer, Value
from gatewayd_engine.kernels.llvm.reductions import lane_sum


def cap(f: KernelFunction, row: Pointer, count: int, lanes: int, softcap: float) -> None:
    """Replace logits by ``softcap * tanh(logits / softcap)``, ``count`` a multiple of the lanes."""
    with f.loop(0, count, lanes) as at:
        row.store(tanh(f, row.vector(lanes, at) * (1.0 / softcap)) * softcap, at)


def argmax(f: KernelFunction, row: Pointer, count: int, lanes: int) -> tuple[Value, Value]:
    """Return the largest of ``count`` numbers, at least ``lanes``, and its first index.

    The largest is NaN if any of them is.
    """
    lowest = f.floats(lanes, float("-inf"))
    top, bad = f.variable(lowest), f.variable(f.zeros(lanes))
    places = f.variable(f.numbers([0] * lanes))
    # The last vector overlaps the one before, whose numbers are then no larger than themselves.
    last = f.index(count - lanes)
    with f.loop(0, count, lanes) as start:
        at = f.least(start, last)
        value = row.vector(lanes, at)
        larger = value > top.get()
        top.set(f.choose(larger, value, top.get()))
        places.set(f.choose(larger, f.splat(at, lanes), places.get()))
        # NaN is not equal to itself, and compares as no larger: it is kept apart.
        bad.set(f.choose(value.equals(value), bad.get(), value))
    found, index = f.lane(top.get(), 0), f.lane(places.get(), 0)
    for lane in range(1, lanes):
        value, place = f.lane(top.get(), lane), f.lane(places.get(), lane) + lane
        earlier = value.equals(found) & (place < index)
        is_better = (value > found) | earlier
        found, index = f.choose(is_better, value, found), f.choose(is_better, place, index)
    return found + lane_sum(f, bad.get()), index
