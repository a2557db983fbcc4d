"""Files that are replaced: readers find a whole one, and a failure changes nothing."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gatewayd_engine.process.file_writes import replace_file, sync


def test_readers_find_the_former_or_the_new_contents(tmp_path: Path) -> None:
    path, contents = tmp_path / "made" / "file", [bytes([i]) * 100_000 for i in range(2)]
    replace_file(path, contents[0])
    is_over, found = threading.Event(), set()

    def read() -> None:
        while not is_over.is_set():
            found.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(200):
        replace_file(path, contents[i % 2])
    is_over.set()
    reader.join()
    assert found <= set(contents)
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o077 == 0


def test_a_failure_leaves_the_former_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    replace_file(path, b"former")

    def full(_: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"former"
    assert list(tmp_path.iterdir()) == [path]


def test_files_and_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "file", []
    path.write_bytes(b"1")
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    open_before = len(os.listdir("/proc/self/fd"))
    sync(path)
    sync(tmp_path)
    assert synced == [str(path), str(tmp_path)]
    assert len(os.listdir("/proc/self/fd")) == open_before
    with pytest.raises(FileNotFoundError):
        sync(tmp_path / "missing")
