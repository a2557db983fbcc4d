"""``disk``: what is acknowledged survives a kill, and nothing damaged is ever given."""

from __future__ import annotations

import errno
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from gatewayd_hooks.kv_tiers import KEY_BYTES
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_tier_disk.config import DiskConfig
from gatewayd_tier_disk.segments import HEADER_BYTES
from gatewayd_tier_disk.strategy import Disk

PAGE_BYTES = 3000
KEYS = st.integers(0, 30)


def key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


def page(number: int, length: int = PAGE_BYTES) -> NDArray[np.uint8]:
    return np.random.default_rng(number).integers(0, 256, length, np.uint8)


def open_disk(folder: Path, page_bytes: int = PAGE_BYTES, **fields: Any) -> Disk:
    disk = Disk(DiskConfig.model_validate({"path": str(folder), "size": "1MiB", **fields}))
    disk.open(engine_resources(page_bytes=page_bytes))
    return disk


def fetched(disk: Disk, number: int) -> NDArray[np.uint8] | None:
    """A page, once it was read; None if it is not there."""
    keys = [key(number)]
    deadline = time.monotonic() + 20
    while disk.find(keys) and not disk.ready(keys):
        assert time.monotonic() < deadline
        disk.fetch(keys)
        time.sleep(0.0002)
    found = disk.get(keys)
    return found[0] if found else None


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


class DiskMachine(RuleBasedStateMachine):
    """Against a dict, through restarts, torn tails and flipped bits."""

    folder: Path
    made = 0

    @initialize()
    def begin(self) -> None:
        DiskMachine.made += 1
        self.path = self.folder / str(DiskMachine.made)
        self.disk = open_disk(self.path)
        self.known: set[int] = set()
        self.has_lost = False

    @rule(number=KEYS)
    def put(self, number: int) -> None:
        given = page(number)
        assert self.disk.put(key(number), given) == []
        given[:] = 0
        self.known.add(number)

    @rule(number=KEYS)
    def get(self, number: int) -> None:
        found = fetched(self.disk, number)
        if found is not None:
            assert number in self.known
            assert np.array_equal(found, page(number))
        elif not self.has_lost:
            assert number not in self.known

    @rule()
    def restart(self) -> None:
        self.disk.close()
        self.disk = open_disk(self.path)

    @rule(part=st.floats(0, 1))
    def tear(self, part: float) -> None:
        self.disk.close()
        for path in self.path.glob("*.kv"):
            os.truncate(path, int(path.stat().st_size * part))
            self.has_lost = True
        self.disk = open_disk(self.path)

    @rule(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
    def flip(self, place: float, bit: int) -> None:
        self.disk.close()
        for path in self.path.glob("*.kv"):
            data = bytearray(path.read_bytes())
            if data:
                data[int(place * len(data))] ^= 1 << bit
                path.write_bytes(data)
                self.has_lost = True
        self.disk = open_disk(self.path)
        for number in self.known:
            found = fetched(self.disk, number)
            assert found is None or np.array_equal(found, page(number))

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "disk"):
            has = [n for n in range(31) if self.disk.find([key(n)])]
            assert len(has) == len(self.disk)
            assert set(has) <= self.known
            if not self.has_lost:
                assert set(has) == self.known

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            self.disk.close()


def test_it_is_a_dict_that_may_forget(tmp_path: Path) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    machine = type("Machine", (DiskMachine,), {"folder": tmp_path})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            database=None,
        ),
    )


WRITER = """
import sys
from pathlib import Path
import numpy as np
from tests.plugins.test_tier_disk import key, open_disk, page
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
            cwd=Path(__file__).parents[2],
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
    (path,) = Path(disk._path).glob("*.kv")
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
    (path,) = Path(disk._path).glob("*.kv")
    data = path.read_bytes()
    half = len(data) // 2
    path.write_bytes(data[half:] + data[:half])
    assert fetched(disk, 0) is None
    assert fetched(disk, 1) is None
    assert len(disk) == 0


def test_size_is_a_limit_and_the_oldest_go_first(make: Callable[..., Disk]) -> None:
    disk = make(memory="8MiB")
    folder = Path(disk._path)
    for number in range(1500):
        disk.put(key(number), page(number))
        if number % 100 == 0:
            disk.flush()
            assert sum(p.stat().st_size for p in folder.glob("*.kv")) <= 1 << 20
    disk.flush()
    has = [number for number in range(1500) if disk.find([key(number)])]
    assert has == list(range(1500 - len(has), 1500))
    assert len(has) > 0.8 * (1 << 20) / (HEADER_BYTES + PAGE_BYTES)
    for number in has[::17]:
        assert np.array_equal(fetched(disk, number), page(number))  # type: ignore[arg-type]
    assert len(make()) == len(has)


def test_a_second_process_is_refused(make: Callable[..., Disk], tmp_path: Path) -> None:
    make()
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.plugins.test_tier_disk import open_disk\n"
        "open_disk(Path(sys.argv[1]))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "kv")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert f"path {tmp_path / 'kv'} is in use by another process" in ran.stderr


def test_nothing_in_the_folder_can_be_read_by_others_or_names_a_key(
    make: Callable[..., Disk],
) -> None:
    disk = make()
    disk.put(key(7), page(7))
    disk.flush()
    folder = Path(disk._path)
    for path in [folder, *folder.iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert all(key(7) not in path.read_bytes() for path in folder.iterdir())
    # Without its secret the folder says nothing.
    (folder / "secret").unlink()
    disk = make()
    assert disk.find([key(7)]) == 0


def test_without_a_path_it_says_what_is_missing() -> None:
    disk = Disk(DiskConfig())
    with pytest.raises(ValueError, match=r"\[kv_tier\.disk\] path is not set"):
        disk.open(engine_resources())
    disk.close()


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
    write = os.pwrite

    def slow(fd: int, data: Any, at: int) -> int:
        time.sleep(0.05)
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", slow)
    began = time.monotonic()
    for number in range(30):
        disk.put(key(number), page(number))
    assert time.monotonic() - began < 0.5
    assert 18 <= disk.dropped <= 20
    assert disk.find([key(n) for n in range(30)]) == 10


def test_reading_ahead_has_a_limit_and_makes_room(make: Callable[..., Disk]) -> None:
    disk = make(memory=8 * PAGE_BYTES)
    for number in range(20):
        disk.put(key(number), page(number))
        disk.flush()
    for first in (0, 6, 12, 0):
        keys = [key(n) for n in range(first, first + 6)]
        deadline = time.monotonic() + 20
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
