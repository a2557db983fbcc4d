"""Prefix match speed: linear in the prompt."""

from __future__ import annotations

import pytest

from tests.bench.prefix_match import LENGTHS, MOST_SECONDS_PER_BLOCK, PAGE, measure
from tests.complexity import TIMES, check_linear


@pytest.mark.parametrize("name", ["hash", "radix"])
def test_a_match_is_linear_to_128k_tokens_and_below_a_microsecond_a_block(name: str) -> None:
    """How straight the line is, the comparison in ``tests/bench`` looks at, on a quiet machine."""
    line = measure(name)
    for at, length in enumerate(LENGTHS):
        if TIMES * length in LENGTHS:
            long = LENGTHS.index(TIMES * length)
            check_linear(line.seconds[at], line.seconds[long], floor=0.001)
    for seconds, length in zip(line.seconds, LENGTHS, strict=True):
        assert seconds / (length / PAGE) < MOST_SECONDS_PER_BLOCK
