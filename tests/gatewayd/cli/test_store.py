"""``gatewayd store``: on real folders."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gatewayd.cli.store import app
from gatewayd.resources.files import records
from gatewayd.resources.files.records import FileRow
from gatewayd_migrations import HEAD
from tests.gatewayd.store_fixtures import opened

run = CliRunner().invoke


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GATEWAYD_STORE__PATH", str(tmp_path / "store"))
    return tmp_path / "store"


def test_a_store_is_made_and_shown(folder: Path) -> None:
    before = json.loads(run(app, ["current", "--json"]).stdout)
    assert (before["schema"], before["folder"]) == (None, str(folder))
    assert run(app, ["upgrade"]).exit_code == 0
    after = json.loads(run(app, ["current", "--json"]).stdout)
    assert after["schema"] == after["newest_schema"] == HEAD
    assert after["bytes"] > 0


async def test_a_running_daemons_store_is_copied_and_not_upgraded(
    folder: Path, tmp_path: Path
) -> None:
    with opened(folder) as durable:
        durable.vault.path("file-1").write_bytes(b"content")
        row = FileRow("file-1", 1, None, 7, "f", "batch")
        await durable.database.write(lambda connection: records.add(connection, row))
        upgraded = run(app, ["upgrade"])
        assert upgraded.exit_code == 1
        assert "in use by another process" in upgraded.output
        copied = run(app, ["backup", str(tmp_path / "copy")])
        assert copied.exit_code == 0, copied.output
    with opened(tmp_path / "copy") as durable:
        assert await durable.database.read(records.ids) == {"file-1"}
        assert durable.vault.path("file-1").read_bytes() == b"content"


async def test_a_file_that_is_deleted_meanwhile_ends_no_copy(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copy2

    def late(source: Path, to: Path) -> None:
        if source.name == "file-1":
            source.unlink()
        copy(source, to)

    monkeypatch.setattr(shutil, "copy2", late)
    with opened(folder) as durable:
        for name in ("file-1", "file-2"):
            durable.vault.path(name).write_bytes(b"content")
            row = FileRow(name, 1, None, 7, "f", "batch")
            await durable.database.write(lambda connection, row=row: records.add(connection, row))  # type: ignore[misc]
        copied = run(app, ["backup", str(tmp_path / "copy")])
        assert copied.exit_code == 0, copied.output
    assert [one.name for one in (tmp_path / "copy" / "files").iterdir()] == ["file-2"]


async def test_a_copy_that_finds_no_room_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, to: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with opened(folder):
        monkeypatch.setattr(shutil, "copy2", full)
        copied = run(app, ["backup", str(tmp_path / "copy")])
        assert copied.exit_code == 1
        assert "No space left on device" in copied.output
        assert not [name for name in os.listdir(tmp_path) if name.startswith("copy")]
        monkeypatch.undo()
        monkeypatch.setenv("GATEWAYD_STORE__PATH", str(folder))
        assert run(app, ["backup", str(tmp_path / "copy")]).exit_code == 0
    copied = run(app, ["backup", str(tmp_path / "copy")])
    assert copied.exit_code == 1
    assert "exists" in copied.output


def test_a_copy_of_nothing_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    copied = run(app, ["backup", str(tmp_path / "copy")])
    assert copied.exit_code == 1
    assert "there is no store in" in copied.output
