"""Huge pages: which memory is moved, and that it stays what it was."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from gatewayd_engine.process.huge_pages import use_huge_pages

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")

# A process of its own: that of the tests has memory in any state.
SCRIPT = """
import mmap, re
from pathlib import Path
from gatewayd_engine.process.huge_pages import use_huge_pages

BYTES = 16 << 20
def resident():
    return int(re.search(r"Rss:\\s+(\\d+)", Path("/proc/self/smaps_rollup").read_text())[1])
used, reserved = (mmap.mmap(-1, BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in "ab")
pattern = bytes(range(256)) * (BYTES // 256)
used[:] = pattern
for at in range(0, BYTES, 1 << 20):
    reserved[at] = 1
before = resident()
made = use_huge_pages()
grown = resident() - before
assert used[:] == pattern and sum(reserved[:: 1 << 20]) == BYTES >> 20
print(made, grown)
"""


def test_where_linux_lists_no_memory_nothing_is_done(tmp_path: Path) -> None:
    assert use_huge_pages(tmp_path / "maps") == 0


@pytest.mark.skipif(not THP.exists() or "[never]" in THP.read_text(), reason="no huge pages")
def test_memory_in_use_moves_and_stays_what_it_was() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    made, grown_kib = map(int, done.stdout.split())
    if not made and tuple(map(int, platform.release().split(".")[:2])) < (6, 1):
        pytest.skip("this kernel does not collapse pages")
    # 16 MiB are in use, and the ranges at their ends may be shared with other memory.
    assert made >= 6
    assert grown_kib < 8 << 10, "memory that is only reserved was filled"
