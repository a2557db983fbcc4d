"""Which steps with prompts the host launches more slowly than the device computes, measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

_SHARE = 0.8
"""Of a step's time that launching may take before the device is taken to wait for it."""
_REPEATS = 3


def launch_bound(
    counts: Sequence[int],
    launch: Callable[[int], object],
    wait: Callable[[], object],
    now: Callable[[], float] = time.perf_counter,
) -> list[int]:
    """Choose the numbers of tokens that are worth capturing.

    Args:
        counts: to choose from, ascending.
        launch: queues a step of so many tokens, kernel by kernel.
        wait: returns when the device has computed what is queued.
        now: seconds of a clock.

    Returns:
        Those whose steps take the host longer than the device, and the next larger number, to
        which steps between the two are padded; none if reading the weights takes longer.
    """
    chosen: list[int] = []
    for count in counts:
        # What is done once for a size, such as compiling, is not measured.
        launch(count)
        wait()
        shares = []
        for _ in range(_REPEATS):
            began = now()
            launch(count)
            launched = now()
            wait()
            shares.append((launched - began) / (now() - began))
        is_bound = median(shares) >= _SHARE
        if is_bound or chosen:
            chosen.append(count)
        if not is_bound:
            break
    return chosen
