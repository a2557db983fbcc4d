"""First sealing of a store: once, recorded, never repeated silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatewayd.store.database import connect
from gatewayd.tenants import records
from gatewayd.tenants.tamper_evidence import audit
from gatewayd.tenants.tamper_evidence.secret import ServerSecret, secret_of
from gatewayd.tenants.tenancy import prepare_tenancy
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.test_audit import act, execute
from tests.security.test_seals import report, rows_of


def older_program(folder: Path) -> ServerSecret:
    """A store with one tenant and no seals."""
    secret, engine = secret_of(folder, {}), connect(folder / "gatewayd.db")
    with engine.begin() as connection:
        records.add_tenant(connection, "a", 1, {"most_tokens": 5})
        head = audit.append(
            connection, secret, at=1, actor="me", action="tenant.create", target="a", detail={}
        )
    audit.write_head(secret, folder / audit.NAME, head, 0)
    engine.dispose()
    return secret


def begin(folder: Path) -> None:
    engine = connect(folder / "gatewayd.db")
    prepare_tenancy(engine, folder)
    engine.dispose()


def test_a_store_of_an_older_program_is_sealed_once_and_that_is_on_record(
    fresh_store: Path, tmp_path: Path
) -> None:
    folder = copy_of(fresh_store, tmp_path / "store")
    older_program(folder)
    for _ in range(2):
        begin(folder)
        assert report(folder).all == []
    assert [row["action"] for row in rows_of(folder, "audit")] == ["tenant.create", audit.SEALED]
    execute(folder, "DELETE FROM seals", "DELETE FROM seal_state")
    begin(folder)
    assert report(folder).faults


def test_an_older_store_whose_audit_is_not_whole_is_not_sealed(
    fresh_store: Path, tmp_path: Path
) -> None:
    folder = copy_of(fresh_store, tmp_path / "store")
    older_program(folder)
    execute(folder, "UPDATE audit SET target = 'b'")
    begin(folder)
    assert report(folder).faults


def test_a_fresh_store_has_no_row_of_its_seals(fresh_store: Path, tmp_path: Path) -> None:
    folder = copy_of(fresh_store, tmp_path / "store")
    begin(folder)
    assert rows_of(folder, "audit") == []
    assert report(folder).all == []
    execute(folder, "UPDATE tenants SET concurrency = 1")
    assert [(f.kind, f.id) for f in report(folder).faults] == [("tenants", "default")]


def test_a_fresh_store_that_a_command_without_the_credential_saw_first_is_sealed_anew(
    fresh_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_of(fresh_store, tmp_path / "store")
    begin(folder)
    (tmp_path / "gatewayd.secret").write_text("11" * 32)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    act(folder, "POST", "/admin/tenants", {"tenant": "a"})
    assert act(folder, "GET", "/admin/audit")["faults"] == []
