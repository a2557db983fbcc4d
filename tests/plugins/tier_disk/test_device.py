"""``disk`` device: no step waits for it; a failure costs one page."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gatewayd_tier_disk.segments import HEADER_BYTES
from gatewayd_tier_disk.strategy import Disk
from tests.plugins.tier_disk.disks import (
    PAGE_BYTES,
    fetched,
    held_back,
    key,
    page,
)


def test_what_was_flushed_is_kept_by_the_device(
    make: Callable[..., Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = make()
    synced: list[int] = []
    sync = os.fsync

    def note(fd: int) -> None:
        synced.append(os.fstat(fd).st_size)
        sync(fd)

    monkeypatch.setattr(os, "fsync", note)
    disk.put(key(1), page(1))
    disk.flush()
    assert synced == [HEADER_BYTES + PAGE_BYTES]
    disk.put(key(2), page(2))
    make()
    assert synced[-1] == 2 * (HEADER_BYTES + PAGE_BYTES)


def test_a_full_device_costs_the_page_and_nothing_else(
    make: Callable[..., Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = make()
    disk.put(key(1), page(1))
    disk.flush()
    write = os.pwrite
    written = []

    def full(fd: int, data: Any, at: int) -> int:
        written.append(at)
        if len(written) % 2:
            return write(fd, data[:100], at)
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    for number in (2, 3):
        disk.put(key(number), page(number))
    disk.flush()
    monkeypatch.undo()
    assert disk.dropped == 2
    assert [disk.find([key(n)]) for n in (1, 2, 3)] == [1, 0, 0]
    disk.put(key(4), page(4))
    disk = make()
    assert [disk.find([key(n)]) for n in (1, 2, 3, 4)] == [1, 0, 0, 1]
    assert np.array_equal(fetched(disk, 4), page(4))  # type: ignore[arg-type]


def test_a_slow_device_makes_nobody_wait(
    make: Callable[..., Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = make(memory=10 * PAGE_BYTES)
    may_write = held_back(monkeypatch)
    for number in range(30):
        disk.put(key(number), page(number))
    assert 18 <= disk.dropped <= 20
    assert disk.find([key(n) for n in range(30)]) == 10
    may_write.set()


def test_what_was_counted_can_be_had_though_it_is_written_meanwhile(
    make: Callable[..., Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = make(memory=4 * PAGE_BYTES)
    may_write = held_back(monkeypatch)
    for first in (0, 4):  # those of before make room
        may_write.clear()
        numbers = range(first, first + 4)
        keys = [key(n) for n in numbers]
        for number in numbers:
            disk.put(key(number), page(number))
        assert disk.ready(keys) == 4
        may_write.set()
        disk.flush()
        assert disk.ready(keys) == 4
        for found, number in zip(disk.get(keys), numbers, strict=True):
            assert np.array_equal(found, page(number))
        assert len(disk._ahead) <= 4


def test_to_ask_takes_nothing_from_who_waits(
    make: Callable[..., Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = make(memory=4 * PAGE_BYTES)
    waited = [key(n) for n in range(4)]
    for number in range(4):
        disk.put(key(number), page(number))
    disk.flush()
    deadline = time.monotonic() + 30
    while disk.ready(waited) < 4:
        assert time.monotonic() < deadline
        disk.fetch(waited)
    may_write = held_back(monkeypatch)
    others = [key(n) for n in range(4, 8)]
    for number in range(4, 8):
        disk.put(key(number), page(number))
    # They are there, but it is not known for how long.
    assert disk.ready(others) == 0
    assert len(disk.get(waited)) == 4
    assert disk.ready(others[:2]) == 2
    # Of what was given two are asked about again, and are not in the way of being counted.
    assert disk.ready(waited[2:]) == 2
    assert disk.ready(others) == 2
    may_write.set()
    disk.flush()
    assert disk.ready(others) == 2
    for number, found in zip(
        (4, 5, 2, 3), [*disk.get(others[:2]), *disk.get(waited[2:])], strict=True
    ):
        assert np.array_equal(found, page(number))
    assert len(disk._ahead) <= 4


def test_reading_ahead_has_a_limit_and_makes_room(make: Callable[..., Disk]) -> None:
    disk = make(memory=8 * PAGE_BYTES)
    for number in range(20):
        disk.put(key(number), page(number))
        disk.flush()
    for first in (0, 6, 12, 0):
        keys = [key(n) for n in range(first, first + 6)]
        deadline = time.monotonic() + 30
        while disk.ready(keys) < 6:
            assert time.monotonic() < deadline
            disk.fetch(keys)
        assert len(disk._ahead) <= 8
        for got, number in zip(disk.get(keys), range(first, first + 6), strict=True):
            assert np.array_equal(got, page(number))
    # More than there is room for: as many as fit, and no thrashing.
    keys = [key(n) for n in range(20)]
    for _ in range(50):
        disk.fetch(keys)
        time.sleep(0.001)
    assert disk.ready(keys) == 8
    assert disk.page_seconds() > 0
