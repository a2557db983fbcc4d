"""Audit records: sealed row by row, with the end beside the store."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, select

from gatewayd.store.database import connect
from gatewayd.store.tables import audit as table
from gatewayd.store.tables import tenants
from gatewayd.tenants.actions import action_of, body_of
from gatewayd.tenants.tamper_evidence import audit
from gatewayd.tenants.tamper_evidence.secret import ServerSecret, secret_of
from gatewayd.tenants.tenancy import act_offline, prepare_tenancy
from tests.gatewayd.store_fixtures import copy_of, opened

ROWS = 8


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


def act(
    folder: Path,
    method: str,
    path: str,
    body: object = None,
    query: Mapping[str, str] | None = None,
) -> Any:
    engine = connect(folder / "gatewayd.db")
    action, params = action_of(method, path)
    given = {**params, **(query or {})}
    try:
        return act_offline(engine, folder, action, given, body_of(action, body), "me")
    finally:
        engine.dispose()


def fault(folder: Path) -> str | None:
    engine = connect(folder / "gatewayd.db")
    try:
        with engine.connect() as connection:
            return audit.fault(connection, secret_of(folder, {}), folder / audit.NAME)
    finally:
        engine.dispose()


@pytest.fixture(scope="module")
def eight(fresh_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_of(fresh_store, tmp_path_factory.mktemp("audit") / "store")
    for number in range(ROWS):
        act(folder, "POST", "/admin/tenants", {"tenant": f"t{number}"})
    return folder


@pytest.fixture
def written(eight: Path, tmp_path: Path) -> Path:
    return copy_of(eight, tmp_path / "written")


def execute(folder: Path, *statements: str) -> None:
    with sqlite3.connect(folder / "gatewayd.db") as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_every_change_is_on_record_and_nothing_secret(folder: Path) -> None:
    act(folder, "POST", "/admin/tenants", {"tenant": "a", "terms": {"most_tokens": 5}})
    made = act(folder, "POST", "/admin/keys", {"tenant": "a"})
    key = made["key"]
    act(folder, "POST", f"/admin/keys/{key}/rotate", {"overlap_seconds": 5})
    act(folder, "PATCH", "/admin/tenants/a", {"weight": 2.0})
    act(folder, "PUT", "/admin/prices", {"model": "m/x", "input": 1, "output": 2})
    act(folder, "DELETE", "/admin/prices/m/x")
    act(folder, "DELETE", f"/admin/keys/{key}")
    act(folder, "DELETE", "/admin/tenants/a")
    found = act(folder, "GET", "/admin/audit")
    assert found["fault"] is None
    assert [(row["action"], row["target"]) for row in reversed(found["rows"])] == [
        ("tenant.create", "a"),
        ("key.create", key),
        ("key.rotate", key),
        ("tenant.set", "a"),
        ("price.set", "m/x"),
        ("price.remove", "m/x"),
        ("key.revoke", key),
        ("tenant.remove", "a"),
    ]
    assert made["secret"].split("_", 2)[2] not in str(found)


TAMPERS = {
    "edit": ["UPDATE audit SET actor = 'you' WHERE seq = 4"],
    "edit of a detail": ["UPDATE audit SET detail = '{}x' WHERE seq = 1"],
    "edit of a seal": ["UPDATE audit SET mac = 'ff' WHERE seq = 8"],
    "removal": ["DELETE FROM audit WHERE seq = 3"],
    "removal and renumbering": [
        "DELETE FROM audit WHERE seq = 3",
        "UPDATE audit SET seq = seq - 1 WHERE seq > 3",
    ],
    "exchange": [
        "UPDATE audit SET seq = 100 WHERE seq = 2",
        "UPDATE audit SET seq = 2 WHERE seq = 3",
        "UPDATE audit SET seq = 3 WHERE seq = 100",
    ],
    "truncation": ["DELETE FROM audit WHERE seq > 6"],
    "truncation of all": ["DELETE FROM audit"],
    "splice": [
        "INSERT INTO audit SELECT 9, at, actor, action, target, detail, mac FROM audit "
        "WHERE seq = 8"
    ],
}


@pytest.mark.parametrize("name", TAMPERS)
def test_a_change_of_the_record_is_found(written: Path, name: str) -> None:
    assert fault(written) is None
    execute(written, *TAMPERS[name])
    found = fault(written)
    assert found is not None
    assert "row" in found
    # What comes after does not hide it.
    act(written, "POST", "/admin/tenants", {"tenant": "later"})
    rows = act(written, "GET", "/admin/audit")["rows"]
    noted = [row["detail"] for row in rows if row["action"] == "audit.broken"]
    assert any(found in detail for detail in noted)
    assert len(noted) <= 2


def test_random_tampers_are_all_found(written: Path) -> None:
    secret, file = secret_of(written, {}), written / audit.NAME
    engine, rng = connect(written / "gatewayd.db"), random.Random(1)
    columns = [column for column in table.c if column.name != "seq"]
    for _ in range(200):
        with engine.connect() as connection:
            seq, column = rng.randint(1, ROWS), rng.choice(columns)
            here = table.c.seq == seq
            value = connection.execute(select(column).where(here)).scalar_one()
            other = value + 1 if isinstance(value, int) else _mutated(value, rng)
            connection.execute(table.update().where(here).values({column.name: other}))
            assert audit.fault(connection, secret, file) is not None, (seq, column, other)
            connection.rollback()
    engine.dispose()
    assert fault(written) is None


def _mutated(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text))
    return text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]


def test_the_file_with_the_end_is_sealed_too(written: Path) -> None:
    file = written / audit.NAME
    kept = file.read_text()
    for forged in (kept.replace('"seq": 8', '"seq": 6'), "{}", ""):
        file.write_text(forged)
        assert "missing or was changed" in str(fault(written))
    file.unlink()
    assert "missing or was changed" in str(fault(written))


def test_a_daemon_that_died_between_both_is_no_fault(written: Path) -> None:
    file = written / audit.NAME
    before = file.read_bytes()
    act(written, "POST", "/admin/tenants", {"tenant": "last"})
    file.write_bytes(before)
    engine = connect(written / "gatewayd.db")
    prepare_tenancy(engine, written)
    engine.dispose()
    assert file.read_bytes() != before
    assert fault(written) is None


def test_a_change_without_its_row_is_none(folder: Path) -> None:
    engine = connect(folder / "gatewayd.db")

    @event.listens_for(engine, "before_cursor_execute")
    def fail(connection: Connection, cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("INSERT INTO audit"):
            raise OSError("the disk is full")

    action, params = action_of("POST", "/admin/tenants")
    body = body_of(action, {"tenant": "a"})
    with pytest.raises(OSError, match="full"):
        act_offline(engine, folder, action, params, body, "me")
    with engine.connect() as connection:
        names = connection.execute(select(tenants.c.id)).scalars().all()
    engine.dispose()
    assert names == ["default"]


def test_the_secret_is_nobodys_to_read_and_not_shown(folder: Path) -> None:
    with opened(folder):
        assert (folder / "secret").stat().st_mode & 0o777 == 0o600
    assert repr(ServerSecret(bytes(32))) == "Secret(***)"
    (folder / "secret").chmod(0o640)
    with pytest.raises(Exception, match="is readable by others"), opened(folder):
        pass
    (folder / "secret").chmod(0o600)
    (folder / "secret").write_text("short")
    with pytest.raises(Exception, match="is not a secret"), opened(folder):
        pass


def test_a_credential_is_taken_before_the_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "gatewayd.secret").write_text("11" * 32 + "\n")
    given = secret_of(folder, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert given.salt("a") == ServerSecret(b"\x11" * 32).salt("a")
    assert not (folder / "secret").exists()
    assert secret_of(folder, {}).salt("a") != given.salt("a")
