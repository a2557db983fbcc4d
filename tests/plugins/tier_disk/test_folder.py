"""``disk`` folder: size, permissions, ownership."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_tier_disk.config import DiskConfig
from gatewayd_tier_disk.segments import HEADER_BYTES
from gatewayd_tier_disk.strategy import Disk
from tests.plugins.tier_disk.disks import (
    PAGE_BYTES,
    fetched,
    files,
    folder_of,
    key,
    open_disk,
    page,
)


def test_size_is_a_limit_and_the_oldest_go_first(make: Callable[..., Disk]) -> None:
    disk = make(memory="8MiB")
    path = Path(disk._path)
    for number in range(1500):
        disk.put(key(number), page(number))
        if number % 100 == 0:
            disk.flush()
            assert sum(p.stat().st_size for p in files(path)) <= 1 << 20
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
        "from tests.plugins.tier_disk.disks import open_disk\n"
        "open_disk(Path(sys.argv[1]))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "kv")],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert f"path {folder_of(tmp_path / 'kv')} is in use by another process" in ran.stderr


REPLICA = """
import sys
from pathlib import Path
from tests.plugins.tier_disk.disks import key, open_disk, page
replica = int(sys.argv[2])
disk = open_disk(Path(sys.argv[1]), replica=replica)
for number in range(replica * 10, replica * 10 + 5):
    disk.put(key(number), page(number))
disk.flush()
print("written", flush=True)
sys.stdin.read()
disk.close()
"""


def test_engines_of_one_daemon_have_a_path_together_and_pages_each_of_their_own(
    tmp_path: Path,
) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", REPLICA, str(tmp_path), str(replica)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        )
        for replica in range(2)
    ]
    # Both have it at the same time.
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
    for process in started:
        process.communicate()
        assert process.returncode == 0
    for replica, first, other in ((0, 0, 10), (1, 10, 0)):
        disk = open_disk(tmp_path, replica=replica)
        assert len(disk) == disk.find([key(n) for n in range(first, first + 5)]) == 5
        assert disk.find([key(other)]) == 0
        assert np.array_equal(fetched(disk, first), page(first))  # type: ignore[arg-type]
        disk.close()


def test_nothing_in_the_folder_can_be_read_by_others_or_names_a_key(
    make: Callable[..., Disk],
) -> None:
    disk = make()
    disk.put(key(7), page(7))
    disk.flush()
    root = Path(disk._path)
    folder = folder_of(root)
    for path in [root, folder, *folder.iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert all(key(7) not in path.read_bytes() for path in folder.iterdir())
    # Without its secret the folder says nothing.
    (folder / "secret").unlink()
    disk = make()
    assert disk.find([key(7)]) == 0


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o702, 0o777])
def test_a_folder_that_others_may_write_to_is_refused(
    make: Callable[..., Disk], tmp_path: Path, mode: int
) -> None:
    make().close()
    folder_of(tmp_path / "kv").chmod(mode)
    with pytest.raises(ValueError, match=rf"can be written to by others, its mode is {mode:o}"):
        make()


def test_a_folder_that_is_somebody_elses_is_refused(
    make: Callable[..., Disk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make().close()
    owner = folder_of(tmp_path / "kv").stat().st_uid
    monkeypatch.setattr("gatewayd_tier_disk.store.os.geteuid", lambda: owner + 1)
    with pytest.raises(ValueError, match=f"belongs to the user {owner}; it must be"):
        make()


@pytest.mark.parametrize("name", ["000000000000.kv", "lock", "secret", ""])
def test_no_link_leads_out_of_the_folder(
    make: Callable[..., Disk], tmp_path: Path, name: str
) -> None:
    """A segment's would be cut off at its first byte that is no record: all of it."""
    outside = tmp_path / "precious"
    folder = folder_of(tmp_path / "kv")
    if name:
        folder.mkdir(mode=0o700, parents=True)
        outside.write_bytes(b"x" * 32)
        (folder / name).symlink_to(outside)
    else:
        outside.mkdir()
        folder.parent.mkdir()
        folder.symlink_to(outside)
    with pytest.raises((OSError, ValueError)):
        make()
    assert outside.is_dir() or outside.read_bytes() == b"x" * 32
    assert not outside.is_dir() or list(outside.iterdir()) == []


def test_without_a_path_it_says_what_is_missing() -> None:
    disk = Disk(DiskConfig())
    with pytest.raises(ValueError, match=r"\[kv_tier\.disk\] path is not set"):
        disk.open(engine_resources())
    disk.close()
