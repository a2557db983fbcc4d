"""Incremental seal verification: new rows at each look, all rows each hour.

The oracle of what is wrong is a look through all of the store by another program's connection.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatewayd.store.database import connect
from gatewayd.tenants import tenancy
from gatewayd.tenants.actions import action_of, body_of
from gatewayd.tenants.directory import AccessRules, Directory
from gatewayd.tenants.tamper_evidence import audit, sealing
from gatewayd.tenants.tamper_evidence.secret import secret_of
from tests.gatewayd.store_fixtures import copy_of, opened
from tests.gatewayd.tenants.test_audit import act, execute, fault
from tests.security.test_seals import use

ROWS = 200


@pytest.fixture(scope="module")
def long(fresh_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tenant with a key and a budget, and a long audit."""
    folder = copy_of(fresh_store, tmp_path_factory.mktemp("looks") / "store")
    act(folder, "POST", "/admin/tenants", {"tenant": "a", "terms": {"most_tokens": 1000}})
    act(folder, "POST", "/admin/keys", {"tenant": "a"})
    engine, secret = connect(folder / "gatewayd.db"), secret_of(folder, {})
    sealing.seal_changes(engine, secret)
    with engine.begin() as connection:
        while audit.head_of(connection).seq < ROWS:
            target, detail = "scheduler", dict[str, Any]()
            audit.append(
                connection, secret, at=1, actor="me", action="swap", target=target, detail=detail
            )
    engine.dispose()
    act(folder, "PUT", "/admin/prices", {"model": "m", "input": 1, "output": 2})
    return folder


@pytest.fixture
def store(long: Path, tmp_path: Path) -> Path:
    return copy_of(long, tmp_path / "copy")


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The thread of each seal of an audit row that is computed to be compared."""
    threads: list[str] = []
    is_sealed = audit._is_sealed

    def counted(*given: Any) -> bool:
        threads.append(threading.current_thread().name)
        return is_sealed(*given)

    monkeypatch.setattr(audit, "_is_sealed", counted)
    return threads


async def change(it: tenancy.Tenancy, number: int) -> None:
    action, params = action_of("PUT", "/admin/prices")
    body = body_of(action, {"model": "m", "input": number, "output": 2})
    await it.act(action, params, body, "me")


async def test_a_change_costs_its_own_row_and_a_look_none(store: Path, checked: list[str]) -> None:
    with opened(store) as durable:
        at_start = len(checked)
        assert at_start >= ROWS + 1, "all of it"
        for _ in range(3):
            await durable.tenancy.check()
        assert len(checked) == at_start
        for number in range(5):
            await change(durable.tenancy, number)
        assert len(checked) == at_start + 5
        assert durable.tenancy.num_faults == 0
    assert fault(store) is None


async def test_each_hour_all_rows_are_looked_at_and_never_on_the_event_loop(
    store: Path, checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(store) as durable:
        it = durable.tenancy
        execute(store, "UPDATE audit SET actor = 'you' WHERE seq = 77")
        await it.check()
        assert it.num_faults == 0, "it was verified, and is looked at each hour"
        checked.clear()
        monkeypatch.setattr(tenancy, "_WHOLE_SECONDS", 0.0)
        await it.check()
        assert it.num_faults == 1
        assert len(checked) >= ROWS
        assert all("store-reader" in name for name in checked)
        monkeypatch.setattr(tenancy, "_WHOLE_SECONDS", 3600.0)
        execute(store, "UPDATE audit SET actor = 'me' WHERE seq = 77")
        await it.check()
        assert it.num_faults == 0, "where something is wrong each look is at all of it"
        action, params = action_of("GET", "/admin/audit")
        execute(store, "UPDATE audit SET actor = 'you' WHERE seq = 78")
        asked = await it.act(action, params, body_of(action, None), "me")
    assert "audit row 78 was changed" in str(asked)


AT_ONCE: dict[str, Callable[[Path], None]] = {
    "an old row deleted": lambda store: execute(store, "DELETE FROM audit WHERE seq = 77"),
    "the last row deleted": lambda store: execute(
        store, f"DELETE FROM audit WHERE seq = {ROWS + 1}"
    ),
    "a row put in": lambda store: execute(
        store,
        "INSERT INTO audit (seq, at, actor, action, target, detail, mac) "
        f"SELECT {ROWS + 2}, at, actor, action, target, detail, mac FROM audit WHERE seq = 77",
    ),
    "the last seal edited": lambda store: execute(
        store, f"UPDATE audit SET mac = 'x' WHERE seq = {ROWS + 1}"
    ),
    "the file deleted": lambda store: (store / audit.NAME).unlink(),
    "a key edited": lambda store: execute(store, "UPDATE keys SET scopes = '[\"*\"]'"),
    "a price deleted": lambda store: execute(store, "DELETE FROM prices"),
}


@pytest.mark.parametrize("name", AT_ONCE)
async def test_what_is_cut_off_put_in_or_sealed_is_found_with_the_next_look(
    store: Path, name: str
) -> None:
    with opened(store) as durable:
        await durable.tenancy.check()
        AT_ONCE[name](store)
        await durable.tenancy.check()
        assert durable.tenancy.num_faults >= 1


async def test_keys_are_taken_in_where_something_that_decides_has_changed(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[object] = []
    load = Directory.load

    def counted(self: Directory, found: AccessRules) -> None:
        loads.append(found)
        load(self, found)

    monkeypatch.setattr(Directory, "load", counted)
    with opened(store) as durable:
        it = durable.tenancy
        assert len(loads) == 1
        await asyncio.to_thread(use, store, 1)
        await it.check()
        assert len(loads) == 1, "what was used decides nothing"
        for number in (5, 5, 6):
            await change(it, number)
        assert len(loads) == 3
        execute(store, "UPDATE budgets SET most_tokens = 10 WHERE tenant = 'a'")
        await it.check()
        assert len(loads) == 4, "the tenant is not trusted"
        execute(store, "UPDATE budgets SET most_tokens = 1000 WHERE tenant = 'a'")
        await it.check()
        assert len(loads) == 5
