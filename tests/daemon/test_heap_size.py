"""Heap size: held bytes against allocated bytes."""

from __future__ import annotations

import os
import sys

import pytest

from tests.daemon.heap_size import grown_by, held_bytes

_SLACK = 4096


@pytest.mark.parametrize(("count", "size"), [(10_000, 100), (100, 10_000), (2, 10_000_000)])
def test_it_is_what_was_allocated_and_no_longer_than_it_is(count: int, size: int) -> None:
    kept: list[bytes] = []
    held_bytes()
    more = grown_by(lambda: kept.extend([os.urandom(size) for _ in range(count)]))
    exact = sum(map(sys.getsizeof, kept)) + sys.getsizeof(kept)
    assert exact - _SLACK < more < 1.15 * exact + _SLACK
    assert -1.15 * exact - _SLACK < grown_by(kept.clear) < _SLACK - exact
    assert abs(grown_by(lambda: [os.urandom(size) for _ in range(count)])) < _SLACK


def test_what_only_garbage_holds_is_not_held() -> None:
    class Loop:
        def __init__(self) -> None:
            self.me, self.much = self, bytes(100_000)

    held_bytes()
    assert grown_by(Loop) < _SLACK
