"""Atomic files: partial writes and a full disk leave old or new content."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from gatewayd.daemon.systemd.init_config import InitError, of_user
from gatewayd.resources.files.content_store import ContentStore
from gatewayd.store import atomic_files
from gatewayd.store.errors import StoreError
from gatewayd.store.location import lock_store
from gatewayd.tenants.billing.crash_marks import Mark, Marks, read_marks
from gatewayd.tenants.tamper_evidence import audit
from gatewayd.tenants.tamper_evidence.secret import ServerSecret, secret_of
from gatewayd_tier_disk import store as tier_store

SECRET = ServerSecret(bytes(32))
OLD, NEW = audit.Head(1, "aa"), audit.Head(2, "bb")


class Written(NamedTuple):
    """A file that is written by one call of ``os.write`` or more.

    Attributes:
        write: writes it into a folder.
        is_whole: whether it is there as it should be.
        is_as_before: whether a write that failed has left what was there, and no draft.
    """

    write: Callable[[Path], object]
    is_whole: Callable[[Path], bool]
    is_as_before: Callable[[Path], bool]


def begin(folder: Path) -> None:
    of_user({"HOME": str(folder)}).create(None, 8000)


FILES = {
    "any": Written(
        lambda folder: atomic_files.replace(folder / "file", b"new" * 1000),
        lambda folder: (folder / "file").read_bytes() == b"new" * 1000,
        lambda folder: sorted(p.name for p in folder.iterdir()) == [],
    ),
    "secret": Written(
        lambda folder: secret_of(folder, {}),
        lambda folder: len((folder / "secret").read_bytes()) == 65,
        lambda folder: list(folder.iterdir()) == [],
    ),
    "audit.head": Written(
        lambda folder: audit.write_head(SECRET, folder / audit.NAME, NEW, 7),
        lambda folder: audit.read(SECRET, folder / audit.NAME) == audit.HeadFile(NEW, 7),
        lambda folder: list(folder.iterdir()) == [],
    ),
    "secret of a disk tier": Written(
        lambda folder: tier_store._secret(folder),
        lambda folder: (folder / "secret").stat().st_size == tier_store._SECRET_BYTES,
        lambda folder: not (folder / "secret").exists(),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_write_that_takes_a_byte_at_a_time_writes_all(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = os.write
    monkeypatch.setattr(os, "write", lambda file, data: right(file, bytes(data[:1])))
    FILES[name].write(tmp_path)
    assert FILES[name].is_whole(tmp_path)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("call", ["write", "fsync", "open"])
def test_a_disk_that_is_full_leaves_no_half(
    name: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, calls = os.write, []

    def full(file: int, *more: object) -> int:
        calls.append(file)
        if call == "write" and len(calls) == 1:  # what fits yet
            return right(file, bytes(more[0])[:5])  # type: ignore[call-overload]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with contextlib.suppress(OSError, StoreError):  # or it goes on without
        FILES[name].write(tmp_path)
    assert calls
    monkeypatch.undo()
    assert FILES[name].is_as_before(tmp_path)
    FILES[name].write(tmp_path)
    assert FILES[name].is_whole(tmp_path)


def test_an_end_of_the_audit_that_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / audit.NAME
    audit.write_head(SECRET, file, OLD, 3)
    before = file.read_bytes()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    audit.write_head(SECRET, file, OLD, 3)  # the same needs no room
    assert not [one for one in caplog.records if one.levelno > logging.INFO]
    audit.write_head(SECRET, file, NEW, 4)
    assert "No space left" in caplog.text
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_a_configuration_that_finds_no_room_is_not_half_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = os.fdopen

    def full(fd: int, *args: object, **more: object) -> object:
        stream = right(fd, *args, **more)  # type: ignore[call-overload]

        def write(text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        stream.write = write
        return stream

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(InitError, match="No space left"):
        begin(tmp_path)
    monkeypatch.undo()
    begin(tmp_path)
    (config,) = tmp_path.rglob("gatewayd.toml")
    assert "[admin]" in config.read_text()


def test_a_lock_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock_store(str(tmp_path)).close()
    used: list[int] = []

    def full(*_: object) -> int:
        used.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(os, "pwrite", full)
        place = lock_store(str(tmp_path))
    assert used
    assert place.last_used is not None  # it is no new store for that
    with pytest.raises(StoreError, match="in use by another process"):
        lock_store(str(tmp_path))
    place.close()


def test_a_content_that_cannot_be_synced_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = ContentStore(tmp_path / "files")
    right = os.fsync

    for failing in (1, 2):  # the content, then its folder
        calls: list[int] = []

        def sync(file: int, failing: int = failing, calls: list[int] = calls) -> None:
            calls.append(file)
            if len(calls) == failing:
                raise OSError(errno.EIO, "Input/output error")
            right(file)

        draft = vault.draft()
        draft.write(b"content")
        monkeypatch.setattr(os, "fsync", sync)
        with pytest.raises(OSError, match="Input/output"):
            draft.commit("file-" + 32 * "0")
        draft.discard()
        monkeypatch.setattr(os, "fsync", right)
        assert list((tmp_path / "files").iterdir()) == []
        assert vault.bytes == 0


def test_marks_without_room_are_none_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "marks"
    with monkeypatch.context() as context:
        context.setattr(os, "posix_fallocate", full)
        marks = Marks(file, lambda: now[0])
        for _ in range(5):
            assert marks.allocate("use_0") is None
    assert caplog.text.count("cannot record running requests") == 1
    now[0] = 6.0
    slots = [marks.allocate(f"use_{number}") for number in range(1024)]
    assert None not in slots
    with monkeypatch.context() as context:
        context.setattr(os, "posix_fallocate", full)
        assert marks.allocate("use_1024") is None
    now[0] = 12.0
    slots.append(marks.allocate("use_1024"))
    for number, slot in enumerate(slots):
        assert slot is not None
        marks.write(slot, number, 2, 1)
    assert read_marks(file) == {f"use_{number}": Mark(number, 2, 1) for number in range(1025)}
    assert file.stat().st_blocks * 512 >= file.stat().st_size  # no holes
    marks.close()
    size = file.stat().st_size
    marks = Marks(file)
    assert read_marks(file) == {}
    assert 0 < file.stat().st_size <= size
    assert file.stat().st_blocks * 512 >= file.stat().st_size
    marks.close()


def test_what_is_kept_is_json_with_its_changes(tmp_path: Path) -> None:
    file = tmp_path / audit.NAME
    audit.write_head(SECRET, file, NEW, 7)
    found = json.loads(file.read_bytes())
    for name, other in (("seq", 3), ("mac", "cc"), ("changes", 8), ("seal", "00")):
        file.write_text(json.dumps({**found, name: other}))
        assert audit.read(SECRET, file) is None
    del found["changes"]
    file.write_text(json.dumps(found))
    assert audit.read(SECRET, file) is None
