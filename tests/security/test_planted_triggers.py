"""Planted database objects: triggers and rows that act in the daemon's transactions.

The oracle is what was put in: none of it may pass, and what it does is never sealed.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from gatewayd.errors import Conflict, PermissionDenied, StoreUnavailable, Unauthorized
from gatewayd.store import schema_check, schema_digests
from gatewayd.store.database import connect
from gatewayd.store.schema import upgrade_schema
from gatewayd.tenants.billing import budget_ledger_sql
from gatewayd.tenants.billing.costs import LedgerEntry, RequestedCost, Settlement, Spent
from gatewayd.tenants.billing.prices import Price
from gatewayd.tenants.tamper_evidence import audit, sealing
from gatewayd.tenants.tamper_evidence.secret import secret_of
from gatewayd_migrations import steps
from gatewayd_migrations.shape import SHAPE
from tests.gatewayd.store_fixtures import copy_of, opened
from tests.gatewayd.tenants.tenant_gateway import SECRET, reserve_one
from tests.gatewayd.tenants.test_audit import act, execute
from tests.security.test_seals import report, rows_of

EDITED = "PRAGMA writable_schema = ON"
IN_A_TABLE = "UPDATE sqlite_master SET sql = replace(sql, '{}', '{}') WHERE name = '{}'"
PLANTED = {
    "a trigger": [
        "CREATE TRIGGER zz AFTER INSERT ON usage BEGIN UPDATE budgets SET most_tokens = 9; END"
    ],
    "a trigger of a view": [
        "CREATE VIEW v AS SELECT 1 AS x",
        "CREATE TRIGGER zz INSTEAD OF INSERT ON v BEGIN DELETE FROM audit; END",
    ],
    "one in the place of ours": [
        "DROP TRIGGER kept_files_insert",
        "CREATE TRIGGER kept_files_insert AFTER INSERT ON files BEGIN DELETE FROM kept; END",
    ],
    "one of ours gone": ["DROP TRIGGER kept_files_insert"],
    "a view": ["CREATE VIEW v AS SELECT * FROM keys"],
    "a table": ["CREATE TABLE json_each (value)"],
    "an index over an expression": ["CREATE INDEX i ON keys (abs(created_at))"],
    "an index that lets in one only": ["CREATE UNIQUE INDEX i ON audit (mac)"],
    "another index in the place of ours": [
        "DROP INDEX ix_usage_created_at",
        "CREATE UNIQUE INDEX ix_usage_created_at ON usage (created_at)",
    ],
    "a column": ["ALTER TABLE keys ADD COLUMN x INTEGER AS (abs(created_at)) VIRTUAL"],
    "a default": [
        EDITED,
        IN_A_TABLE.format("used_tokens INTEGER DEFAULT 0", "used_tokens INTEGER", "budgets"),
    ],
    "an action of a foreign key": [
        EDITED,
        IN_A_TABLE.format("tenants (id)", "tenants (id) ON UPDATE CASCADE", "keys"),
    ],
    "a conflict that is ignored": [
        EDITED,
        IN_A_TABLE.format("at INTEGER", "at INTEGER UNIQUE ON CONFLICT IGNORE", "audit"),
    ],
    "a check": [EDITED, IN_A_TABLE.format("at INTEGER", "at INTEGER CHECK (seq < 9)", "audit")],
}  # fmt: skip


@pytest.fixture
def store(fresh_store: Path, tmp_path: Path) -> Path:
    folder = copy_of(fresh_store, tmp_path / "store")
    act(folder, "POST", "/admin/tenants", {"tenant": "a", "terms": {"most_tokens": 1000}})
    return folder


def test_the_shape_is_what_migrations_make_from_any_revision_on(tmp_path: Path) -> None:
    for revision in (None, "0002", "0008"):
        file = tmp_path / f"{revision}.db"
        engine = connect(file)
        if revision is not None:
            with engine.begin() as connection:
                steps.upgrade(connection, revision)
        upgrade_schema(engine, file)
        with engine.connect() as connection:
            assert schema_check.digests(connection, SHAPE) == SHAPE
            for harmless in ("ANALYZE", "REINDEX"):
                connection.exec_driver_sql(harmless)
            assert schema_check.faults(connection) == []
        engine.dispose()


TABLE = Path(__file__).parents[2] / "migrations" / "gatewayd_migrations" / "shape.py"


def test_the_table_of_digests_is_what_the_migrations_make() -> None:
    written = TABLE.read_text()
    assert schema_digests.rewrite(written) == written, (
        "run .venv/bin/python -m gatewayd.store.schema_digests"
        " migrations/gatewayd_migrations/shape.py"
    )
    with pytest.raises(ValueError, match="no table"):
        schema_digests.rewrite(written.replace("SHAPE", "FORM"))


def test_a_table_that_is_written_at_once_is_right_for_a_new_migration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What it was before, an empty one too, makes no difference."""
    upgrade = steps.upgrade

    def one_more(connection: Connection, revision: str = "head") -> None:
        upgrade(connection, revision)
        connection.execute(text("CREATE TABLE new (id INTEGER PRIMARY KEY, x TEXT UNIQUE)"))

    monkeypatch.setattr(steps, "upgrade", one_more)
    once = schema_digests.rewrite("SHAPE = {\n}\n")
    namespace: dict[str, dict[str, str]] = {}
    exec(once, namespace)
    assert namespace["SHAPE"].keys() - SHAPE.keys() == {"table new"}
    monkeypatch.setattr(schema_check, "SHAPE", namespace["SHAPE"])
    engine = connect(tmp_path / "new.db")
    with engine.begin() as connection:
        one_more(connection)
        assert schema_check.faults(connection) == []
    engine.dispose()


@pytest.mark.parametrize("name", PLANTED)
def test_whatever_acts_by_itself_is_found(store: Path, name: str) -> None:
    key = act(store, "POST", "/admin/keys", {"tenant": "a"})["secret"]
    assert report(store).all == []
    execute(store, *PLANTED[name])
    faults = report(store).faults
    assert faults
    assert {fault.kind for fault in faults} == {""}
    with opened(store) as durable, pytest.raises(Unauthorized):
        durable.tenancy.directory.authenticate(key.encode())


def test_what_a_trigger_does_in_a_transaction_of_ours_is_not_sealed(store: Path) -> None:
    made = act(store, "POST", "/admin/keys", {"tenant": "a", "scopes": ["models:read"]})
    engine = connect(store / "gatewayd.db")
    sealing.seal_changes(engine, secret_of(store, {}))
    with engine.begin() as connection:  # the shape was looked at before, as in a daemon that runs
        connection.execute(text("UPDATE tenants SET weight = 2 WHERE id = 'a'"))
    assert report(store).all == []
    execute(
        store,
        "CREATE TRIGGER zz AFTER INSERT ON usage BEGIN "
        "UPDATE keys SET scopes = '[\"*\"]', tenant = 'default'; "
        "UPDATE budgets SET most_tokens = 999999 WHERE tenant = 'a'; END",
    )
    asked = RequestedCost("req_1", "a", None, "/v1/completions", "m", 2, 5)
    entry = LedgerEntry("use_1", asked, Price(), 1, True)
    with engine.begin() as connection:
        reserve_one(connection, entry)
        budget_ledger_sql.settle(connection, [Settlement(entry, Spent("stop", 2, 0, 5))], SECRET)
    execute(store, "DROP TRIGGER zz")
    found = {(fault.kind, fault.id) for fault in report(store).faults}
    assert found == {("keys", made["key"]), ("budgets", "a")}
    with engine.begin() as connection:  # without it all goes on
        connection.execute(text("UPDATE tenants SET weight = 3 WHERE id = 'a'"))
    engine.dispose()
    assert {(fault.kind, fault.id) for fault in report(store).faults} == found


def test_rows_of_the_audit_that_are_dropped_take_the_change_with_them(store: Path) -> None:
    execute(store, "CREATE TRIGGER aa BEFORE INSERT ON audit BEGIN SELECT RAISE(IGNORE); END")
    before = rows_of(store, "keys")
    engine, secret = connect(store / "gatewayd.db"), secret_of(store, {})
    with pytest.raises(StoreUnavailable, match="audit"), engine.begin() as connection:
        audit.append(
            connection, secret, at=1, actor="me", action="key.create", target="a", detail={}
        )
    engine.dispose()
    assert rows_of(store, "keys") == before
    with opened(store) as durable:  # it starts all the same, and says what is wrong
        assert durable.tenancy.num_faults == 1


def test_it_is_not_accepted_and_the_rest_is_once_it_is_gone(store: Path) -> None:
    execute(store, *PLANTED["a trigger"], "UPDATE tenants SET weight = 9 WHERE id = 'a'")
    with pytest.raises(Conflict, match="trigger zz"):
        act(store, "POST", "/admin/audit/accept")
    execute(store, "DROP TRIGGER zz")
    assert act(store, "POST", "/admin/audit/accept")["accepted"]
    assert report(store).all == []


def test_vacuuming_is_nothing_that_matters(store: Path) -> None:
    engine = connect(store / "gatewayd.db")
    sealing.seal_changes(engine, secret_of(store, {}))
    for weight in (2, 3):
        with engine.begin() as connection:
            connection.execute(text(f"UPDATE tenants SET weight = {weight} WHERE id = 'a'"))
        with sqlite3.connect(store / "gatewayd.db", isolation_level=None) as other:
            other.execute("VACUUM")
        other.close()
    engine.dispose()
    assert report(store).all == []


def test_an_edited_reservation_moves_no_sealed_budget(store: Path) -> None:
    engine = connect(store / "gatewayd.db")
    sealing.seal_changes(engine, secret_of(store, {}))
    entries = [
        LedgerEntry(
            f"use_{n}", RequestedCost(f"r{n}", "a", None, "/", "m", 10, 90), Price(9, 9, 9), 1, True
        )
        for n in range(2)
    ]
    with engine.begin() as connection:
        for entry in entries:
            reserve_one(connection, entry)
    for amount, entry in zip((10**12, -(10**12)), entries, strict=True):
        execute(store, f"UPDATE reservations SET tokens = {amount}, micros = {amount}")
        with engine.begin() as connection:
            budget_ledger_sql.settle(
                connection, [Settlement(entry, Spent("stop", 10, 0, 5))], SECRET
            )
    engine.dispose()
    (budget,) = [row for row in rows_of(store, "budgets") if row["tenant"] == "a"]
    assert (budget["used_tokens"], budget["reserved_tokens"], budget["reserved_micros"]) == (
        30,
        0,
        0,
    )
    assert report(store).all == []


@pytest.mark.parametrize(
    ("statement", "refused"),
    [
        ("DELETE FROM prices WHERE model = 'dear'", {"dear"}),
        ("UPDATE prices SET input = 1 WHERE model = 'dear'", {"dear"}),
        ("DELETE FROM prices WHERE model = '*'", {"other"}),
        ("INSERT INTO prices VALUES (x'64', 0, 0, 0)", {"dear", "other"}),
        ("INSERT INTO prices VALUES ('other', 0, 0, 0)", {"other"}),
        ("SELECT 1", set()),
    ],
)
async def test_no_price_becomes_that_of_others_by_a_change_of_anybodys(
    store: Path, statement: str, refused: set[str]
) -> None:
    act(store, "POST", "/admin/tenants", {"tenant": "m", "terms": {"most_micros": 10**9}})
    key = act(store, "POST", "/admin/keys", {"tenant": "m"})["secret"]
    for model, input_price in (("dear", 1000000), ("*", 1), ("gone", 5)):
        act(store, "PUT", "/admin/prices", {"model": model, "input": input_price, "output": 1})
    act(store, "DELETE", "/admin/prices/gone")  # of the operator's will: others' price is right
    execute(store, statement)
    with opened(store) as durable:
        account = durable.tenancy.directory.authenticate(key.encode()).account
        assert account is not None
        found = set()
        for model in ("dear", "other", "gone"):
            try:
                ticket = await account.reserve(RequestedCost("r", "m", None, "/", model, 1, 1))
            except PermissionDenied:
                found.add(model)
            else:
                ticket.cancel()
    assert found - {"gone"} == refused
    assert ("gone" in found) == ("other" in refused and "'other'" not in statement)
