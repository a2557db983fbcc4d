"""Fixtures: a disk tier that is closed before it is reopened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gatewayd_tier_disk.strategy import Disk
from tests.plugins.tier_disk.disks import (
    open_disk,
)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Disk]]:
    """Opens the tier; it is closed before it is opened again."""
    opened: list[Disk] = []

    def again(**fields: Any) -> Disk:
        while opened:
            opened.pop().close()
        opened.append(open_disk(tmp_path / "kv", **fields))
        return opened[-1]

    yield again
    while opened:
        opened.pop().close()
