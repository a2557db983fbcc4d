"""Measurement of which steps with prompts are bound by kernel launches on the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

_SHARE = 0.8
"""Share of a step's time spent on launches from which on the step counts as launch-bound."""
_REPEATS = 3


def launch_bound(
    counts: Sequence[int],
    launch: Callable[[int], object],
    wait: Callable[[], object],
    now: Callable[[], float] = time.perf_counter,
) -> list[int]:
    """Choose the token counts for which a captured step pays off.

    Args:
        counts: candidates, ascending.
        launch: launches a step of a number of tokens, kernel by kernel.
        wait: waits until the device has finished all launches.
        now: clock, in seconds.

    Returns:
        The launch-bound counts, and the next larger one, to which steps in between are padded;
        none if reading the weights takes longer than launching.
    """
    chosen: list[int] = []
    for count in counts:
        # One-time work of a size, such as compilation, is not measured.
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
        # Computation grows with the tokens and launching does not: larger sizes are not bound
        # either.
        if not is_bound:
            break
    return chosen
