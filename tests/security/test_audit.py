"""Audit tampering: edits, swaps and truncation are found.

A chain of seals alone does not show what was cut off its end, the usual hole of such records.
Beside it stand a sealed file, and what the store was told to make.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from gatewayd.tenants.tamper_evidence import audit
from tests.gatewayd.store_fixtures import copy_of, opened
from tests.gatewayd.tenants.test_audit import act, execute, fault

CHANGES = 6


@pytest.fixture(scope="module")
def recorded(fresh_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six changes: tenants, and keys of them."""
    folder = copy_of(fresh_store, tmp_path_factory.mktemp("security") / "store")
    for number in range(CHANGES // 2):
        act(folder, "POST", "/admin/tenants", {"tenant": f"t{number}"})
        act(folder, "POST", "/admin/keys", {"tenant": f"t{number}"})
    assert fault(folder) is None
    return folder


@pytest.fixture
def store(recorded: Path, tmp_path: Path) -> Path:
    return copy_of(recorded, tmp_path / "copy")


def renumbered(folder: Path, order: list[int]) -> None:
    """Rows in another order, under the numbers that belong there."""
    with sqlite3.connect(folder / "gatewayd.db") as connection:
        for place, seq in enumerate(order, 1):
            connection.execute("UPDATE audit SET seq = ? WHERE seq = ?", (-place, seq))
        connection.execute("UPDATE audit SET seq = -seq")
    connection.close()


def test_every_order_but_the_right_one_is_found(store: Path, tmp_path: Path) -> None:
    rng = random.Random(1)
    orders = [list(some) for some in itertools.permutations(range(1, CHANGES + 1))]
    for number, order in enumerate(rng.sample(orders, 12)):
        copy = copy_of(store, tmp_path / str(number))
        renumbered(copy, order)
        assert (fault(copy) is None) == (order == sorted(order)), order
        shutil.rmtree(copy)


@pytest.mark.parametrize("left", range(CHANGES))
@pytest.mark.parametrize("is_file_there", [True, False])
def test_every_end_that_is_cut_off_is_found(store: Path, left: int, is_file_there: bool) -> None:
    """Also all of it, together with the file that tells where it ended."""
    execute(store, f"DELETE FROM audit WHERE seq > {left}")
    if not is_file_there:
        (store / audit.NAME).unlink()
    assert fault(store) is not None


CHANGES_LATER = {
    "tenant.create": ("POST", "/admin/tenants", {"tenant": "later"}),
    "tenant.set": ("PATCH", "/admin/tenants/t0", {"most_tokens": 999_999_999}),
    "tenant.remove": ("DELETE", "/admin/tenants/t1", None),
    "key.create": ("POST", "/admin/keys", {"tenant": "t0"}),
    "key.rotate": ("POST", "/admin/keys/{key}/rotate", {}),
    "key.revoke": ("DELETE", "/admin/keys/{key}", None),
    "price.set": ("PUT", "/admin/prices", {"model": "m", "input": 1, "output": 2}),
}


@pytest.mark.parametrize("name", CHANGES_LATER)
def test_an_older_end_is_no_way_back(store: Path, name: str) -> None:
    """The file of a day before, put back with the rows of that day; what was changed stays."""
    method, path, body = CHANGES_LATER[name]
    (key, *_) = (row["key"] for row in act(store, "GET", "/admin/keys"))
    before = (store / audit.NAME).read_bytes()
    act(store, method, path.format(key=key), body)
    assert fault(store) is None
    execute(store, f"DELETE FROM audit WHERE seq > {CHANGES}")
    (store / audit.NAME).write_bytes(before)
    assert fault(store) == "audit rows 7 to 7 are missing at the end"


def test_an_older_end_hides_no_change_outside_of_the_store(store: Path) -> None:
    """Swaps, limits and pins have a row of the audit and none of their own."""
    before = (store / audit.NAME).read_bytes()
    with opened(store) as durable:
        asyncio.run(durable.tenancy.record_change("me", "swap", "scheduler", {}))
    assert fault(store) is None
    execute(store, f"DELETE FROM audit WHERE seq > {CHANGES}")
    (store / audit.NAME).write_bytes(before)
    assert fault(store) == "audit rows 7 to 7 are missing at the end"


def test_the_same_fault_once_more_is_on_record_once_more(store: Path) -> None:
    (store / audit.NAME).unlink()
    act(store, "POST", "/admin/tenants", {"tenant": "hidden"})
    (store / audit.NAME).unlink()
    execute(store, "DELETE FROM audit WHERE action = 'tenant.create' AND target = 'hidden'")
    act(store, "POST", "/admin/tenants", {"tenant": "later"})
    rows = act(store, "GET", "/admin/audit")["rows"]
    told = [(row["action"], row["target"]) for row in reversed(rows)][CHANGES:]
    assert told == [
        ("audit.broken", "audit"),
        ("audit.broken", "audit"),
        ("tenant.create", "later"),
    ]
    for _ in range(3):  # nothing new: nothing to tell
        with opened(store):
            pass
    assert len(act(store, "GET", "/admin/audit")["rows"]) == CHANGES + 3


def test_rows_that_are_cut_off_beside_a_daemon_are_on_record_with_the_next_change(
    store: Path,
) -> None:
    with opened(store) as durable:
        execute(store, f"DELETE FROM audit WHERE seq = {CHANGES}")
        asyncio.run(durable.tenancy.record_change("me", "swap", "scheduler", {}))
        rows = asyncio.run(durable.database.read(lambda c: audit.rows(c, 2)))
    assert [row.action for row in rows] == ["audit.broken", "swap"]
    assert "audit rows 6 to 6 are missing" in rows[0].detail


def test_an_end_from_the_log_tells_of_a_store_that_was_put_back_as_a_whole(
    store: Path, tmp_path: Path
) -> None:
    older = copy_of(store, tmp_path / "older")
    act(store, "PATCH", "/admin/tenants/t0", {"weight": 2.0})
    head = act(store, "GET", "/admin/audit")["head"]
    for folder, is_there in ((store, True), (older, False)):
        found = act(folder, "GET", "/admin/audit", query={"head": head})["fault"]
        assert (found is None) == is_there
        assert act(folder, "GET", "/admin/audit")["fault"] is None


def test_what_is_accepted_is_no_fault_and_what_comes_after_is(store: Path) -> None:
    execute(
        store, "UPDATE audit SET actor = 'you' WHERE seq = 3", "DELETE FROM audit WHERE seq = 5"
    )
    assert fault(store) == "audit row 3 was changed"
    accepted = act(store, "POST", "/admin/audit/accept")["accepted"]
    assert accepted[0] == "audit row 3 was changed"
    assert fault(store) is None
    act(store, "POST", "/admin/tenants", {"tenant": "later"})
    assert fault(store) is None
    row = next(r for r in act(store, "GET", "/admin/audit")["rows"] if r["action"] == audit.ACCEPT)
    assert "audit row 3 was changed" in row["detail"]
    assert row["actor"] == "me"
    execute(store, "UPDATE audit SET actor = 'him' WHERE seq = 3")
    assert fault(store) is not None
    assert act(store, "POST", "/admin/audit/accept")["accepted"]
    assert act(store, "POST", "/admin/audit/accept")["accepted"] == []
