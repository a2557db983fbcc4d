"""Seals: edited tenants, keys, prices and budgets are found without the server's secret.

The oracle is what was done: every column of every row is edited, every row deleted, copied and put
back as it was, and every set of tables put back together; only a store whose parts are all of one
moment may pass.
"""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError

from gatewayd.errors import Unauthorized
from gatewayd.store.database import connect
from gatewayd.tenants import records
from gatewayd.tenants.billing import budget_ledger_sql
from gatewayd.tenants.billing.costs import LedgerEntry, RequestedCost, Settlement, Spent
from gatewayd.tenants.billing.prices import Price
from gatewayd.tenants.tamper_evidence import audit, integrity, sealing, seals
from gatewayd.tenants.tamper_evidence.secret import secret_of
from tests.gatewayd.store_fixtures import copy_of, opened
from tests.gatewayd.tenants.tenant_gateway import SECRET, reserve_one
from tests.gatewayd.tenants.test_audit import act, execute

KINDS = tuple(seals.TABLES)
ALL = "SELECT * FROM {}"


def used(engine: Engine, number: int, tokens: int = 5) -> None:
    """A request of tenant a: reserved in one transaction, settled in the next."""
    asked = RequestedCost(f"req_{number}", "a", None, "/v1/completions", "m", 2, tokens)
    entry = LedgerEntry(f"use_{number}", asked, Price(1, 1, 1), int(time.time()), True)
    with engine.begin() as connection:
        reserve_one(connection, entry)
    with engine.begin() as connection:
        budget_ledger_sql.settle(
            connection, [Settlement(entry, Spent("stop", 2, 0, tokens))], SECRET
        )


def use(folder: Path, number: int) -> None:
    engine = connect(folder / "gatewayd.db")
    sealing.seal_changes(engine, secret_of(folder, {}))
    used(engine, number)
    engine.dispose()


def report(folder: Path) -> integrity.Report:
    engine = connect(folder / "gatewayd.db").execution_options(readonly=True)
    try:
        with engine.begin() as connection:
            return integrity.examine(connection, secret_of(folder, {}), folder / audit.NAME)
    finally:
        engine.dispose()


class Stores(NamedTuple):
    """One store at two moments; all sealed tables and the audit differ."""

    older: Path
    now: Path
    keys: dict[str, str]


@pytest.fixture(scope="module")
def stores(fresh_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    folder = tmp_path_factory.mktemp("seals")
    older, now = copy_of(fresh_store, folder / "older"), folder / "now"
    made = {}
    for tenant in ("a", "b"):
        terms = {"most_tokens": 1000, "concurrency": 3, "kv_floor": "10%"}
        act(older, "POST", "/admin/tenants", {"tenant": tenant, "terms": terms})
        made[tenant] = act(older, "POST", "/admin/keys", {"tenant": tenant})["secret"]
    made["gone"] = act(older, "POST", "/admin/keys", {"tenant": "a"})["secret"]
    for model in ("m", "n", "o"):
        act(older, "PUT", "/admin/prices", {"model": model, "input": 1, "output": 2})
    use(older, 1)
    shutil.copytree(older, now)
    use(now, 2)
    act(now, "PATCH", "/admin/tenants/a", {"weight": 2.5})
    act(now, "DELETE", f"/admin/keys/{made['gone'].split('_')[1]}")
    act(now, "PUT", "/admin/prices", {"model": "m", "input": 3, "output": 4})
    act(now, "DELETE", "/admin/prices/o")
    assert report(older).all == report(now).all == []
    return Stores(older, now, made)


@pytest.fixture
def store(stores: Stores, tmp_path: Path) -> Path:
    return copy_of(stores.now, tmp_path / "store")


class Attacked:
    """A store in a transaction that is rolled back after each attack."""

    def __init__(self, folder: Path) -> None:
        self.file, self.secret = folder / audit.NAME, secret_of(folder, {})
        self.engine = connect(folder / "gatewayd.db")

    def reports(self, *statements: tuple[str, tuple[object, ...]]) -> integrity.Report:
        with self.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
            for statement, values in statements:
                connection.exec_driver_sql(statement, values)
            found = integrity.examine(connection, self.secret, self.file)
            connection.rollback()
        return found


@pytest.fixture
def attacked(store: Path) -> Iterator[Attacked]:
    made = Attacked(store)
    yield made
    made.engine.dispose()


def rows_of(folder: Path, table: str) -> list[dict[str, Any]]:
    with sqlite3.connect(folder / "gatewayd.db") as connection:
        connection.row_factory = sqlite3.Row
        found = [dict(row) for row in connection.execute(ALL.format(table))]
    connection.close()
    return found


def others(value: object) -> list[object]:
    """Values like it, and such as look the same in another type."""
    if value is None:
        return [0, "", b""]
    if isinstance(value, int):
        return [value + 1, -value - 1, value + 0.5, f"{value}x", None]
    if isinstance(value, float):
        return [value + 2**-50, value + 1, None]
    if isinstance(value, bytes):
        return [bytes([value[0] ^ 1]) + value[1:], value + b"\0", value.hex(), None]
    text = str(value)
    return [text + "x", text + "\0", text.upper() + "Y", text.encode(), None]


@pytest.mark.parametrize("kind", KINDS)
def test_every_edit_of_every_column_is_found(attacked: Attacked, stores: Stores, kind: str) -> None:
    key, tried = seals.id_of(seals.TABLES[kind]), 0
    for row in rows_of(stores.now, kind):
        for column, value in row.items():
            for other in others(value):
                statement = f'UPDATE {kind} SET "{column}" = ? WHERE "{key}" = ?'
                try:
                    found = attacked.reports((statement, (other, row[key])))
                except IntegrityError:  # the table itself takes none of that
                    continue
                tried += 1
                assert row[key] in {fault.id for fault in found.faults}, (column, value, other)
    assert tried > 20
    assert attacked.reports().all == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_that_is_deleted_copied_or_exchanged_is_found(
    attacked: Attacked, stores: Stores, kind: str
) -> None:
    key = seals.id_of(seals.TABLES[kind])
    rows = rows_of(stores.now, kind)
    for row in rows:
        gone = (f'DELETE FROM {kind} WHERE "{key}" = ?', (row[key],))
        no_seal = ("DELETE FROM seals WHERE kind = ? AND id = ?", (kind, row[key]))
        assert attacked.reports(gone).faults
        assert attacked.reports(gone, no_seal).faults
        assert attacked.reports(no_seal).faults
        names = ", ".join(f'"{name}"' for name in row)
        copied = ", ".join("'copy'" if name == key else f'"{name}"' for name in row)
        copy = (
            f'INSERT INTO {kind} ({names}) SELECT {copied} FROM {kind} WHERE "{key}" = ?',
            (row[key],),
        )
        seal = (
            "INSERT INTO seals SELECT kind, 'copy', version, mac FROM seals "
            "WHERE kind = ? AND id = ?",
            (kind, row[key]),
        )
        assert attacked.reports(copy).faults
        assert attacked.reports(copy, seal).faults
    for one, other in itertools.permutations([row[key] for row in rows], 2):
        moved = f'UPDATE {kind} SET "{key}" = ? WHERE "{key}" = ?'
        sealed = "UPDATE seals SET id = ? WHERE kind = ? AND id = ?"
        steps = ((one, "x"), (other, one), ("x", other))
        exchanged = [(moved, (to, at)) for at, to in steps]
        seals_too = [(sealed, (to, kind, at)) for at, to in steps]
        assert attacked.reports(*exchanged).faults
        assert attacked.reports(*exchanged, *seals_too).faults


@pytest.mark.parametrize("kind", KINDS)
def test_every_older_row_is_found_also_with_its_seal_and_the_state_of_then(
    attacked: Attacked, stores: Stores, kind: str
) -> None:
    key, tried = seals.id_of(seals.TABLES[kind]), 0
    now = {row[key]: row for row in rows_of(stores.now, kind)}
    sealed = {row["id"]: row for row in rows_of(stores.older, "seals") if row["kind"] == kind}
    (state,) = rows_of(stores.older, "seal_state")
    for row in rows_of(stores.older, kind):
        if now.get(row[key]) == row:
            continue
        tried += 1
        steps = [
            replaced(kind, row),
            replaced("seals", sealed[row[key]]),
            replaced("seal_state", state),
        ]
        for count in (1, 2, 3):
            assert attacked.reports(*steps[:count]).faults, (row[key], count)
    assert tried


def replaced(table: str, row: dict[str, Any]) -> tuple[str, tuple[object, ...]]:
    names, marks = ", ".join(f'"{name}"' for name in row), ", ".join("?" for _ in row)
    return f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", tuple(row.values())


def test_parts_of_an_older_store_never_pass_unless_all_of_it_is_put_back(
    stores: Stores, tmp_path: Path
) -> None:
    """All sets of: each table with its seals, the state, the audit, the file beside the store."""
    store = copy_of(stores.now, tmp_path / "mixed")
    parts = (*KINDS, "seal_state", "audit", audit.NAME)
    in_store, passed = set(parts[:-1]), []
    attacked = Attacked(store)
    for count in range(len(parts) + 1):
        for chosen in map(set, itertools.combinations(parts, count)):
            steps: list[tuple[str, tuple[object, ...]]] = []
            for table in chosen & in_store:
                steps.append((f"DELETE FROM {table}", ()))
                steps += [replaced(table, row) for row in rows_of(stores.older, table)]
                if table in KINDS:
                    steps.append(("DELETE FROM seals WHERE kind = ?", (table,)))
                    steps += [
                        replaced("seals", row)
                        for row in rows_of(stores.older, "seals")
                        if row["kind"] == table
                    ]
            source = stores.older if audit.NAME in chosen else stores.now
            shutil.copy(source / audit.NAME, store / audit.NAME)
            if attacked.reports(*steps).sentence is None:
                passed.append(chosen)
    attacked.engine.dispose()
    # The file alone hides nothing. All of it is a store of that moment: the log tells, --head.
    assert passed == [set(), {audit.NAME}, set(parts)]


def test_a_row_of_later_does_not_make_up_for_one_of_before(
    fresh_store: Path, tmp_path: Path
) -> None:
    """Versions that add up: q of change 4 and p of 9, beside the state of p of 5 and q of 8."""
    store = copy_of(fresh_store, tmp_path / "store")
    steps: list[tuple[str, tuple[object, ...]]] = []
    for number, model in enumerate("qqqqpqqqp", 1):
        act(store, "PUT", "/admin/prices", {"model": model, "input": number, "output": 1})
        parts = {4: ("q",), 8: ("seal_state",), 9: ("p",)}.get(number, ())
        for part in parts:
            if part == "seal_state":
                steps += [replaced(part, row) for row in rows_of(store, part)]
                steps.append(("DELETE FROM audit WHERE seq > 8", ()))
                head = (store / audit.NAME).read_bytes()
                continue
            steps += [replaced("prices", r) for r in rows_of(store, "prices") if r["model"] == part]
            steps += [
                replaced("seals", row)
                for row in rows_of(store, "seals")
                if (row["kind"], row["id"]) == ("prices", part)
            ]
    (store / audit.NAME).write_bytes(head)
    attacked = Attacked(store)
    found = attacked.reports(*steps)
    attacked.engine.dispose()
    assert found.chain is None
    assert [fault.what for fault in found.faults] == ["is newer than the sealed state"]


@pytest.mark.parametrize(
    "statements",
    [
        ["DELETE FROM seals"],
        ["DELETE FROM seal_state"],
        ["DELETE FROM seals", "DELETE FROM seal_state"],
        ["DELETE FROM seals", "DELETE FROM seal_state", "DELETE FROM audit"],
        ["UPDATE seals SET mac = ''"],
        ["UPDATE seal_state SET mac = ''"],
        ["UPDATE seal_state SET changes = 9223372036854775807"],
        ["UPDATE seals SET version = version + 1"],
    ],
)
def test_seals_that_are_gone_are_not_made_again(
    stores: Stores, store: Path, statements: list[str]
) -> None:
    execute(store, "UPDATE budgets SET most_tokens = 1000000", *statements)
    (store / audit.NAME).unlink()
    for _ in range(2):
        with opened(store) as durable:
            assert durable.tenancy.num_faults
            assert durable.tenancy.directory.has_keys
            with pytest.raises(Unauthorized):
                durable.tenancy.directory.authenticate(stores.keys["a"].encode())
    assert any(row["action"] == audit.BROKEN for row in rows_of(store, "audit"))
    assert act(store, "POST", "/admin/audit/accept")["accepted"]
    assert report(store).all == []
    with opened(store) as durable:
        assert durable.tenancy.directory.authenticate(stores.keys["a"].encode()).tenant == "a"


def test_a_change_of_ones_own_hides_nobody_elses(store: Path) -> None:
    execute(store, "UPDATE budgets SET most_tokens = 1000000 WHERE tenant = 'a'")
    use(store, 3)
    assert [(f.kind, f.id) for f in report(store).faults] == [("budgets", "a")]
    execute(store, "DELETE FROM prices WHERE model = 'n'")
    act(store, "PUT", "/admin/prices", {"model": "n", "input": 9, "output": 9})
    assert {(f.kind, f.id) for f in report(store).faults} == {("budgets", "a"), ("prices", "n")}


WRONG: dict[str, tuple[str, Callable[[Stores], tuple[str, ...]]]] = {
    "scopes of a key": (
        "UPDATE keys SET scopes = '[\"*\"]' WHERE tenant = 'a'",
        lambda stores: (stores.keys["b"],),
    ),
    "a budget": (
        "UPDATE budgets SET used_tokens = 0 WHERE tenant = 'a'",
        lambda stores: (stores.keys["b"],),
    ),
    "a tenant": (
        "UPDATE tenants SET concurrency = NULL WHERE id = 'a'",
        lambda stores: (stores.keys["b"],),
    ),
    "all keys": ("DELETE FROM keys", lambda stores: ()),
    "a price": (
        "UPDATE prices SET input = 0",
        lambda stores: (stores.keys["a"], stores.keys["b"]),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_as_it_was_sealed_lets_nobody_in_and_others_are_served(
    stores: Stores, store: Path, name: str
) -> None:
    statement, served = WRONG[name]
    execute(store, statement)
    with opened(store) as durable:
        directory = durable.tenancy.directory
        assert directory.has_keys
        assert directory.operator.is_free
        good = set()
        for key in (stores.keys["a"], stores.keys["b"]):
            try:
                directory.authenticate(key.encode())
            except Unauthorized:
                continue
            good.add(key)
        assert good == set(served(stores))


def test_a_database_of_before_a_change_of_budgets_alone_is_found(
    stores: Stores, store: Path, tmp_path: Path
) -> None:
    """No row of the audit tells of it: only the number of changes in the newer file does."""
    before = tmp_path / "before.db"
    with opened(store):
        """Takes the database's log into its file."""
    shutil.copy(store / "gatewayd.db", before)
    num_rows = len(rows_of(store, "audit"))
    use(store, 7)
    with opened(store):
        """Its start writes how many changes there were."""
    assert len(rows_of(store, "audit")) == num_rows
    assert report(store).all == []
    for log in store.glob("gatewayd.db-*"):
        log.unlink()
    shutil.copy(before, store / "gatewayd.db")
    (found,) = report(store).all
    assert found.startswith(f"the store is older than {audit.NAME}, which records ")


async def test_a_running_daemon_finds_it_within_a_look(stores: Stores, store: Path) -> None:
    key = stores.keys["a"].encode()
    with opened(store) as durable:
        tenancy = durable.tenancy
        lease = tenancy.directory.authenticate(key).lease
        execute(store, "UPDATE keys SET scopes = '[\"*\"]' WHERE tenant = 'a'")
        for _ in range(3):
            await tenancy.check()
        assert lease is not None
        assert lease.is_over
        with pytest.raises(Unauthorized):
            tenancy.directory.authenticate(key)
        tenancy.directory.authenticate(stores.keys["b"].encode())
    broken = [row for row in rows_of(store, "audit") if row["action"] == audit.BROKEN]
    assert len(broken) == 1


def test_a_transaction_that_is_undone_leaves_seals_as_they_were(store: Path) -> None:
    engine = connect(store / "gatewayd.db")
    sealing.seal_changes(engine, secret_of(store, {}))
    with engine.connect() as connection, connection.begin() as transaction:
        records.change_tenant(connection, SECRET, "a", 1, {"weight": 7.0})
        transaction.rollback()
    with engine.begin() as connection:
        savepoint = connection.begin_nested()
        records.change_tenant(connection, SECRET, "a", 1, {"weight": 7.0})
        savepoint.rollback()
        records.change_tenant(connection, SECRET, "b", 1, {"weight": 7.0})
    engine.dispose()
    assert report(store).all == []
