"""Disk tiers with numbered pages, for tests."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gatewayd_hooks.kv_tiers import KEY_BYTES
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_tier_disk.config import DiskConfig
from gatewayd_tier_disk.strategy import Disk

PAGE_BYTES = 3000


def key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


def page(number: int, length: int = PAGE_BYTES) -> NDArray[np.uint8]:
    return np.random.default_rng(number).integers(0, 256, length, np.uint8)


def open_disk(path: Path, page_bytes: int = PAGE_BYTES, replica: int = 0, **fields: Any) -> Disk:
    disk = Disk(DiskConfig.model_validate({"path": str(path), "size": "1MiB", **fields}))
    disk.open(engine_resources(page_bytes=page_bytes, replica=replica))
    return disk


def folder_of(path: Path, replica: int = 0) -> Path:
    """Where an engine's pages are."""
    return path / f"engine-{replica}"


def files(path: Path, replica: int = 0) -> list[Path]:
    """An engine's segments, oldest first."""
    return sorted(folder_of(path, replica).glob("*.kv"))


def fetched(disk: Disk, number: int) -> NDArray[np.uint8] | None:
    """A page, once it was read; None if it is not there."""
    keys = [key(number)]
    deadline = time.monotonic() + 30
    while disk.find(keys) and not disk.ready(keys):
        assert time.monotonic() < deadline
        disk.fetch(keys)
        time.sleep(0.0002)
    found = disk.get(keys)
    return found[0] if found else None


def slow_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device takes its time for each page."""
    write = os.pwrite

    def slow(fd: int, data: Any, at: int) -> int:
        time.sleep(0.05)
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", slow)


def held_back(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is written until this is set."""
    may_write, write = threading.Event(), os.pwrite

    def waiting(*args: Any) -> int:
        assert may_write.wait(60)
        return write(*args)

    monkeypatch.setattr(os, "pwrite", waiting)
    return may_write
