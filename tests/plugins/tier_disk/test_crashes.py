"""``disk`` crashes: acknowledged pages survive a kill, damaged ones are never served."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gatewayd_tier_disk.segments import HEADER_BYTES
from gatewayd_tier_disk.strategy import Disk
from tests.plugins.tier_disk.disks import (
    PAGE_BYTES,
    fetched,
    files,
    key,
    open_disk,
    page,
)

WRITER = """
import sys
from pathlib import Path
import numpy as np
from tests.plugins.tier_disk.disks import key, open_disk, page
disk = open_disk(Path(sys.argv[1]), size="64MiB", memory="64MiB")
number = int(sys.argv[2])
while True:
    for _ in range(int(sys.argv[3])):
        disk.put(key(number), page(number))
        number += 1
    disk.flush()
    print(number, flush=True)
"""


def test_a_process_killed_at_any_moment_loses_only_what_was_not_written(tmp_path: Path) -> None:
    rng = random.Random(11)
    folder = tmp_path / "kv"
    first, acknowledged = 0, 0
    for _ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), str(first), str(rng.choice([1, 20, 200]))],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
            text=True,
        )
        assert process.stdout is not None
        for _ in range(rng.randrange(1, 6)):
            acknowledged = int(process.stdout.readline())
        time.sleep(rng.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
        process.wait()
        process.stdout.close()
        disk = open_disk(folder, size="64MiB", memory="64MiB")
        assert disk.find([key(n) for n in range(acknowledged)]) == acknowledged
        for number in rng.sample(range(acknowledged), min(acknowledged, 60)):
            assert np.array_equal(fetched(disk, number), page(number))  # type: ignore[arg-type]
        # What was not acknowledged may be there, and is whole if it is.
        for number in range(acknowledged, acknowledged + 250):
            found = fetched(disk, number)
            assert found is None or np.array_equal(found, page(number))
        disk.close()
        first = acknowledged


def test_a_torn_record_is_cut_off_wherever_it_ends(make: Callable[..., Disk]) -> None:
    disk = make()
    for number in range(3):
        disk.put(key(number), page(number))
    disk.flush()
    (path,) = files(Path(disk._path))
    whole = path.read_bytes()
    record = HEADER_BYTES + PAGE_BYTES
    assert len(whole) == 3 * record
    disk.close()
    for end in [0, 1, HEADER_BYTES, record - 1, record, record + 7, 2 * record, 3 * record - 1]:
        path.write_bytes(whole[:end])
        disk = make()
        assert len(disk) == end // record
        assert path.stat().st_size == end // record * record
        # It goes on behind the last whole one.
        disk.put(key(9), page(9))
        disk = make()
        assert np.array_equal(fetched(disk, 9), page(9))  # type: ignore[arg-type]


def test_a_page_of_another_key_is_not_taken_for_one(make: Callable[..., Disk]) -> None:
    """Records swapped in the file: each is whole, and neither is where the index says."""
    disk = make()
    for number in range(2):
        disk.put(key(number), page(number))
    disk.flush()
    (path,) = files(Path(disk._path))
    data = path.read_bytes()
    half = len(data) // 2
    path.write_bytes(data[half:] + data[:half])
    assert fetched(disk, 0) is None
    assert fetched(disk, 1) is None
    assert len(disk) == 0
