"""Store location: path and permissions."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from gatewayd.store.database import connect
from gatewayd.store.errors import StoreError
from gatewayd.store.location import default_folder, lock_store
from gatewayd.store.schema import upgrade_schema


def test_a_folder_is_made_and_is_the_users_alone(tmp_path: Path) -> None:
    place = lock_store(str(tmp_path / "a" / "b"))
    assert place.folder == tmp_path / "a" / "b"
    assert place.folder.stat().st_mode & 0o777 == 0o700
    place.close()


def test_the_database_is_the_users_alone_in_a_folder_that_is_not(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    place = lock_store(str(tmp_path))
    engine = connect(place.database)
    upgrade_schema(engine, place.database)
    kept = [one for one in tmp_path.iterdir() if one.is_file()]
    assert {one.stat().st_mode & 0o777 for one in kept} == {0o600}
    engine.dispose()
    place.close()


def test_when_it_was_last_used_is_what_the_last_life_has_said(tmp_path: Path) -> None:
    place = lock_store(str(tmp_path))
    assert place.last_used is None
    place.touch(1_800_000_000.0)
    place.close()
    for _ in range(2):  # a start says nothing: its clock may be wrong
        place = lock_store(str(tmp_path))
        assert place.last_used == 1_800_000_000.0
        place.close()


def test_systemd_comes_before_the_users_folders(tmp_path: Path) -> None:
    environ = {"STATE_DIRECTORY": f"{tmp_path}/s:/other", "XDG_STATE_HOME": str(tmp_path)}
    assert default_folder(environ) == tmp_path / "s"
    del environ["STATE_DIRECTORY"]
    assert default_folder(environ) == tmp_path / "gatewayd"


def test_a_configured_folder_that_is_taken_is_refused_with_its_holder(tmp_path: Path) -> None:
    first = lock_store(str(tmp_path))
    with pytest.raises(StoreError, match=f"in use by another process \\(pid {os.getpid()}\\)"):
        lock_store(str(tmp_path))
    first.close()
    lock_store(str(tmp_path)).close()


def test_the_second_daemon_of_a_user_serves_on_a_temporary_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    first = lock_store(None, environ)
    second = lock_store(None, environ)
    assert not first.is_temporary
    assert second.is_temporary
    assert "in use by another process" in caplog.text
    (second.folder / "left").write_text("over")
    second.close()
    assert not second.folder.exists()
    first.close()
    assert first.folder.exists()


def test_under_systemd_a_folder_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreError, match="cannot be used"):
        lock_store(None, {"STATE_DIRECTORY": str(tmp_path / "file" / "below")})


def test_a_home_that_cannot_be_written_does_not_keep_anyone_from_serving(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    place = lock_store(None, {"XDG_STATE_HOME": str(tmp_path / "file")})
    assert place.is_temporary
    place.close()


def test_what_a_killed_daemon_left_goes_with_the_next_temporary_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    used = lock_store("temporary")
    left = tmp_path / used.folder.name.replace("temporary-", "temporary-of-the-dead-")
    (left / "files").mkdir(parents=True)
    (left / "lock").write_text("1")
    theirs = tmp_path / "gatewayd-mine"
    theirs.mkdir()
    (theirs / "lock").touch()
    new = lock_store("temporary")
    assert set(tmp_path.iterdir()) == {used.folder, new.folder, theirs}
    new.close()
    used.close()
    assert list(tmp_path.iterdir()) == [theirs]
