"""Growth of running time with input size, robust on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable

TIMES = 4
"""The larger size is so many times the smaller one: linear work takes 4 times as long, quadratic
work 16 times; the bound is between them, as far from the one as from the other."""
MOST_GROWTH = 8.0


def best_seconds(work: Callable[[], object], tries: int = 3) -> float:
    """Processor time of this thread, of the best try: whatever else runs only adds to it."""
    best = float("inf")
    for _ in range(tries):
        began = time.thread_time()
        work()
        best = min(best, time.thread_time() - began)
    return best


def check_linear(small: float, large: float, floor: float = 0.02) -> None:
    """Compare seconds for some size with those for ``TIMES`` as much.

    Args:
        small: seconds for the smaller size.
        large: seconds for the larger one.
        floor: of too little time nothing can be told.
    """
    assert large < max(floor, MOST_GROWTH * small), f"{small:.4f} s, {large:.4f} s"
