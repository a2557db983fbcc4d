"""``disk`` flush at close: pages are written while time and space allow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gatewayd_tier_disk.strategy import Disk
from tests.plugins.tier_disk.disks import PAGE_BYTES, fetched, files, key, page, slow_writes


def given(numbers: range) -> Iterator[tuple[bytes, NDArray[np.uint8]]]:
    """Pages, one after the other."""
    return ((key(number), page(number)) for number in numbers)


def test_many_more_pages_are_kept_than_may_wait_to_be_written(make: Callable[..., Disk]) -> None:
    disk = make(memory=5 * PAGE_BYTES)
    disk.put(key(0), page(0))
    disk.keep(given(range(100)), 20)
    assert disk.dropped == 0
    disk = make()
    assert disk.find([key(n) for n in range(100)]) == 100
    assert np.array_equal(fetched(disk, 99), page(99))  # type: ignore[arg-type]


@pytest.mark.parametrize("before", [0, 30, 1000])
def test_the_first_are_kept_where_not_all_have_room(make: Callable[..., Disk], before: int) -> None:
    disk = make(memory="8MiB")
    for number in range(5000, 5000 + before):
        disk.put(key(number), page(number))
    disk.flush()
    disk.keep(given(range(1000)), 20)
    disk = make()
    assert 250 < disk.find([key(n) for n in range(1000)]) < 350
    assert sum(path.stat().st_size for path in files(Path(disk._path))) <= 1 << 20


@pytest.mark.parametrize("colder", [40, 1000])
def test_what_is_on_disk_already_is_not_pushed_out_by_colder_pages(
    make: Callable[..., Disk], colder: int
) -> None:
    disk = make(memory="8MiB")
    first, last = range(20), range(320, 340)
    for number in [*first, *range(5000, 5290), *last]:
        disk.put(key(number), page(number))
    disk.flush()
    hot = [key(n) for n in (*first, *last)]
    assert disk.find(hot) == 40, "the first are in the oldest segment"
    new = range(1000, 1000 + colder)
    disk.keep(((key(n), page(n)) for n in (*first, *new[:20], *last, *new[20:])), 20)
    disk = make()
    assert disk.find(hot) == 40
    assert disk.find([key(n) for n in new[:30]]) == 30
    assert np.array_equal(fetched(disk, 7), page(7))  # type: ignore[arg-type]
    assert sum(path.stat().st_size for path in files(Path(disk._path))) <= 1 << 20


def test_a_slow_device_ends_it_in_time_and_the_first_are_kept(
    make: Callable[..., Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = make(memory=4 * PAGE_BYTES)
    slow_writes(monkeypatch)
    began = time.monotonic()
    disk.keep(given(range(600)), 0.5)
    assert 0.4 < time.monotonic() - began < 15  # all of them take 30
    monkeypatch.undo()
    assert 4 <= make().find([key(n) for n in range(600)]) <= 100


def test_without_time_nothing_is_begun(make: Callable[..., Disk]) -> None:
    make().keep(given(range(10)), 0)
    assert len(make()) == 0
