"""Edited reservations: deleted, forged or restored ones are charged at the next start.

The oracle is what was delivered: no request becomes cheaper than that, no tenant is charged for
rows that no daemon wrote, and untouched requests are charged exactly.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import IntegrityError

from gatewayd.store.database import connect
from gatewayd.tenants import records
from gatewayd.tenants.billing import (
    budget_ledger_sql as ledger_records,
)
from gatewayd.tenants.billing import (
    crash_marks as marks,
)
from gatewayd.tenants.billing import (
    recovery,
)
from gatewayd.tenants.billing.costs import Settlement, Spent
from gatewayd.tenants.tamper_evidence import audit, integrity
from gatewayd.tenants.tamper_evidence.secret import secret_of
from gatewayd.text.text_model import TextModel
from tests.daemon.test_tenants import act as act_at
from tests.gatewayd.fake_fleet import after, says
from tests.gatewayd.gateway import until
from tests.gatewayd.store_fixtures import opened
from tests.gatewayd.tenants.tenant_gateway import bearer, reserve_one, town
from tests.gatewayd.tenants.test_audit import act, execute
from tests.security.killed_store import (
    EXACT,
    NOW,
    OLD,
    PRICE,
    SPENT,
    Killed,
    Start,
    X,
    Y,
    Z,
    entry,
    put,
    state_now,
    state_of,
)
from tests.security.test_seals import others, replaced, rows_of


class Rolled:
    """Starts in a transaction that is rolled back after each attack."""

    def __init__(self, folder: Path) -> None:
        self.file, self.secret = folder / audit.NAME, secret_of(folder, {})
        self.known = marks.read_marks(folder / marks.NAME)
        self.engine = connect(folder / "gatewayd.db")

    def start(self, *statements: tuple[str, Sequence[object]]) -> Start:
        with self.engine.connect() as connection:
            for statement, values in statements:
                connection.exec_driver_sql(statement, tuple(values))
            report = integrity.examine(connection, self.secret, self.file)
            lost = recovery.examine(connection, self.secret, self.known, report.faults)
            recovery.settle(connection, lost, self.secret)
            found = state_of(connection, [str(fault) for fault in lost.faults])
            connection.rollback()
        return found


@pytest.fixture
def rolled(killed: Killed) -> Iterator[Rolled]:
    made = Rolled(killed.folder)
    yield made
    made.engine.dispose()


def test_what_nobody_touched_is_charged_at_its_mark(killed: Killed) -> None:
    with opened(killed.folder) as durable:
        assert durable.tenancy.num_faults == 0
    found = state_now(killed.folder)
    assert found.used == {
        "default": 0,
        "a": SPENT + EXACT[X.id] + EXACT[Y.id],
        "b": EXACT[Z.id],
        "c": 0,
    }
    assert {one: row[1] for one, row in found.usage.items() if one != OLD.id} == EXACT
    assert found.usage[X.id][2] == PRICE.cost(10, 0, 50)
    assert not any(row["action"] == audit.BROKEN for row in rows_of(killed.folder, "audit"))


def test_every_edit_of_every_column_is_on_record_and_makes_nothing_cheaper(
    killed: Killed, rolled: Rolled
) -> None:
    tried = 0
    (row,) = [row for row in rows_of(killed.folder, "reservations") if row["id"] == X.id]
    for column, value in row.items():
        more = ["b", "c"] if column == "tenant" else [0, -(10**12), 10**12]
        for other in (*others(value), *more):
            statement = f'UPDATE reservations SET "{column}" = ? WHERE id = ?'
            try:
                found = rolled.start((statement, (other, X.id)))
            except IntegrityError:  # the table itself takes none of that
                continue
            tried += 1
            told = (column, other, found)
            assert found.used["b"] == EXACT[Z.id], told
            assert found.used["c"] == 0, told
            assert found.used["a"] >= SPENT + EXACT[X.id] + EXACT[Y.id], told
            assert found.used["a"] <= SPENT + X.asked.tokens + Y.asked.tokens, told
            assert found.usage[Z.id][1] == EXACT[Z.id], told
            if column != "id":
                assert found.usage[Y.id][1] == EXACT[Y.id], told
                assert any(fault.startswith(f"reservations {X.id} ") for fault in found.faults)
            assert found.faults, told
    assert tried > 50


def test_what_is_deleted_is_charged_whole_and_the_rest_exactly(rolled: Rolled) -> None:
    found = rolled.start(("DELETE FROM reservations WHERE id = ?", (X.id,)))
    assert found.used["a"] == SPENT + X.asked.tokens + EXACT[Y.id]
    (unknown,) = [row for one, row in found.usage.items() if one not in (OLD.id, Y.id, Z.id)]
    assert unknown == ("a", X.asked.tokens, X.micros)
    assert len(found.faults) == 1
    found = rolled.start(("DELETE FROM reservations", ()))
    assert (found.used["a"], found.used["b"]) == (SPENT + 145, Z.asked.tokens)
    assert len(found.faults) == 2


def test_no_forged_row_charges_anybody(killed: Killed, rolled: Rolled) -> None:
    (row,) = [row for row in rows_of(killed.folder, "reservations") if row["id"] == Z.id]
    exact = rolled.start()
    assert exact.faults == []
    for changes in (
        {"id": "use_forged", "tenant": "c"},
        {"id": "use_forged"},
        {"id": "use_forged", "tenant": "c", "seal": None},
        {"id": "use_forged", "tenant": "c", "seal": b""},
        {"id": "use_forged", "tenant": "c", "seal": "\0" * 32},
        {"id": b"use_forged", "tenant": "nobody", "tokens": "many"},
    ):
        found = rolled.start(replaced("reservations", row | changes))
        assert (found.used, found.usage) == (exact.used, exact.usage), changes
        assert len(found.faults) == 1, changes
        assert "use_forged" in found.faults[0]
    # Rows that exchange their seals are none of ours.
    (other,) = [row for row in rows_of(killed.folder, "reservations") if row["id"] == X.id]
    found = rolled.start(
        replaced("reservations", row | {"seal": other["seal"]}),
        replaced("reservations", other | {"seal": row["seal"]}),
    )
    assert found.used["a"] == SPENT + X.asked.tokens + EXACT[Y.id]
    assert found.used["b"] == Z.asked.tokens


def test_a_row_that_is_over_stands_for_none_that_runs(killed: Killed, rolled: Rolled) -> None:
    """It has a valid seal, and the size of X."""
    back = replaced("reservations", killed.old)
    gone = ("DELETE FROM reservations WHERE id = ?", (X.id,))
    forgotten = ("DELETE FROM usage WHERE id = ?", (OLD.id,))
    # Its usage tells of it, and X is charged.
    found = rolled.start(gone, back)
    assert found.used["a"] == SPENT + X.asked.tokens + EXACT[Y.id]
    assert len(found.faults) == 2
    # Nothing does: all that the budget has reserved is charged.
    used = rolled_books(rolled, gone, back, forgotten)
    assert used["a"] == SPENT + X.asked.tokens + Y.asked.tokens
    # Beside X it adds nothing to that.
    used = rolled_books(rolled, back, forgotten)
    assert used["a"] == SPENT + X.asked.tokens + Y.asked.tokens
    assert used["b"] == EXACT[Z.id]
    found = rolled.start(back)
    assert found.used["a"] == SPENT + EXACT[X.id] + EXACT[Y.id]


def rolled_books(rolled: Rolled, *statements: tuple[str, Sequence[object]]) -> dict[str, int]:
    """What is used, where usage was deleted and its sum is no oracle."""
    with rolled.engine.connect() as connection:
        for statement, values in statements:
            connection.exec_driver_sql(statement, tuple(values))
        report = integrity.examine(connection, rolled.secret, rolled.file)
        lost = recovery.examine(connection, rolled.secret, rolled.known, report.faults)
        assert lost.faults
        recovery.settle(connection, lost, rolled.secret)
        query = "SELECT tenant, used_tokens FROM budgets WHERE reserved_tokens = 0"
        found = {row[0]: row[1] for row in connection.exec_driver_sql(query)}
        connection.rollback()
    return found


def test_what_a_start_finds_is_audited_logged_and_counted(
    killed: Killed, caplog: pytest.LogCaptureFixture
) -> None:
    execute(
        killed.folder,
        f"UPDATE reservations SET tokens = 0, prompt_tokens = 0 WHERE id = '{X.id}'",
        "INSERT INTO reservations SELECT 'use_forged', request_id, 'c', key_id, endpoint, model, "
        "created_at, prompt_tokens, tokens, micros, input_price, cached_price, output_price, "
        f"period_begin, seal FROM reservations WHERE id = '{Z.id}'",
    )
    with opened(killed.folder) as durable:
        assert durable.tenancy.num_faults == 3
    (broken,) = [row for row in rows_of(killed.folder, "audit") if row["action"] == audit.BROKEN]
    for words in (
        f"reservations {X.id} of a was changed",
        "reservations use_forged of c was changed",
        "reservations of a are not all there",
    ):
        assert words in json.loads(broken["detail"])["fault"]
        assert words in caplog.text
    with opened(killed.folder) as durable:
        assert durable.tenancy.num_faults == 0, "it is settled"
    assert state_now(killed.folder).used["a"] == SPENT + X.asked.tokens + EXACT[Y.id]


def test_bytes_that_are_no_text_stop_no_start_and_no_settlement(killed: Killed) -> None:
    names = [name for name in rows_of(killed.folder, "reservations")[0] if name != "id"]
    broken = ", ".join(f"{name} = CAST(x'ff' AS TEXT)" for name in names)
    execute(killed.folder, f"UPDATE reservations SET {broken} WHERE id = '{X.id}'")
    engine = connect(killed.folder / "gatewayd.db")
    secret = killed.seal(engine)
    with engine.begin() as connection:  # a daemon that runs yet
        spent = Spent("stop", 10, 0, 30)
        ledger_records.settle(connection, [Settlement(X, spent)], secret)
    engine.dispose()
    execute(killed.folder, f"UPDATE reservations SET {broken} WHERE id = '{Y.id}'")
    execute(killed.folder, f"UPDATE reservations SET id = CAST(x'ff' AS TEXT) WHERE id = '{Z.id}'")
    with opened(killed.folder):
        """It starts."""
    found = state_now(killed.folder)
    assert found.used["a"] == SPENT + 40 + Y.asked.tokens
    assert found.used["b"] == Z.asked.tokens


@pytest.mark.parametrize("period", ["day", None, "month"])
def test_another_kind_of_period_trusts_no_edited_row(killed: Killed, period: str | None) -> None:
    """Neither its amounts nor its time, and it lends no row a seal that had none."""
    execute(
        killed.folder,
        f"UPDATE reservations SET tokens = -1000000, created_at = 0 WHERE id = '{X.id}'",
    )
    engine = connect(killed.folder / "gatewayd.db")
    secret = killed.seal(engine)
    with engine.begin() as connection:
        values = {"budget_period": period}
        records.change_tenant(connection, secret, "a", NOW, values)
    (budget,) = [row for row in rows_of(killed.folder, "budgets") if row["tenant"] == "a"]
    assert budget["reserved_tokens"] == X.asked.tokens + Y.asked.tokens
    with engine.begin() as connection:
        spent = Spent("stop", 10, 0, 30)
        ledger_records.settle(connection, [Settlement(X, spent)], secret)
    engine.dispose()
    with opened(killed.folder) as durable:
        assert durable.tenancy.num_faults == 0, "the books are exact again"
    assert state_now(killed.folder).used["a"] == SPENT + 40 + EXACT[Y.id]


def test_the_period_of_a_row_is_what_was_sealed_also_where_the_clock_was_set_back(
    killed: Killed,
) -> None:
    """A request of a later day than its time counts there, but not because its row was edited."""
    engine = connect(killed.folder / "gatewayd.db")
    secret = killed.seal(engine)
    back = [entry(name, "a", 1, 9, NOW - 5 * 86_400) for name in ("p", "q", "r")]
    for one in back:
        with engine.begin() as connection:
            reserve_one(connection, one, secret)
    p, q, r = back
    execute(killed.folder, f"UPDATE reservations SET period_begin = 0 WHERE id = '{q.id}'")
    with engine.begin() as connection:
        spent = Spent("stop", 1, 0, 9)
        settled = [Settlement(one, spent) for one in (p, q)]
        ledger_records.settle(connection, settled, secret)
    engine.dispose()
    (budget,) = [row for row in rows_of(killed.folder, "budgets") if row["tenant"] == "a"]
    assert budget["used_tokens"] == SPENT + p.asked.tokens
    assert budget["reserved_tokens"] == 145 + q.asked.tokens + r.asked.tokens
    with opened(killed.folder):
        """What q held is charged now."""
    (budget,) = [row for row in rows_of(killed.folder, "budgets") if row["tenant"] == "a"]
    assert (budget["reserved_tokens"], budget["reserved_tags"]) == (0, None)
    least = SPENT + p.asked.tokens + q.asked.tokens + 1 + EXACT[X.id] + EXACT[Y.id]
    assert least <= budget["used_tokens"] <= SPENT + 30 + 145


def test_a_request_of_yesterday_releases_nothing_of_today_whatever_its_row_says(
    killed: Killed,
) -> None:
    engine = connect(killed.folder / "gatewayd.db")
    secret = killed.seal(engine)
    late, today = (entry(str(n), "c", 10, 80, NOW + n * 86_400) for n in range(2))
    for one in (late, today):
        with engine.begin() as connection:
            reserve_one(connection, one, secret)
    (begin,) = [r["period_begin"] for r in rows_of(killed.folder, "budgets") if r["tenant"] == "c"]
    execute(killed.folder, f"UPDATE reservations SET period_begin = {begin} WHERE tenant = 'c'")
    with engine.begin() as connection:
        spent = Spent("stop", 10, 0, 1)
        ledger_records.settle(connection, [Settlement(late, spent)], secret)
    engine.dispose()
    (budget,) = [row for row in rows_of(killed.folder, "budgets") if row["tenant"] == "c"]
    assert (budget["used_tokens"], budget["reserved_tokens"]) == (0, 90)


async def test_a_period_that_is_edited_while_a_request_runs_takes_it_out_of_no_budget(
    text: TextModel, folder: Path
) -> None:
    go = asyncio.Event()

    script = after(go, says([300] * 4, reason="length"))
    async with town(text, folder, script) as here:
        await here.tenant("a", most_tokens=50, budget_period="day")
        key = await here.key("a")
        body = {"model": "nano", "prompt": [7] * 3, "max_tokens": 10}
        asked = [asyncio.create_task(here.post("/v1/completions", key, body)) for _ in range(2)]
        await until(lambda: len(here.gateway.fleet.jobs) == 2)
        execute(folder, "UPDATE reservations SET period_begin = period_begin - 86400")
        go.set()
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200, 200]
        await here.check_books()
        row = await here.budget("a")
        assert (row["used_tokens"], row["reserved_tokens"]) == (14, 0)


TENANTS = ("honest", "edited", "dear", "deleted", "moved", "late", "old", "victim")
PROMPT = 10


async def streamed(http: httpx.AsyncClient, headers: dict[str, str], told: list[int]) -> None:
    """Count the tokens that a client is told, until the daemon is gone."""
    body = {"model": "nano", "prompt": [300] * PROMPT, "max_tokens": 500, "stream": True}
    with contextlib.suppress(httpx.HTTPError):
        async with http.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    told[0] += bool(json.loads(line[6:])["choices"][0]["text"])


async def test_a_killed_daemons_requests_cost_what_was_delivered_whatever_its_rows_say(
    start_daemon: Any, folder: Path
) -> None:
    act(folder, "PUT", "/admin/prices", {"model": "*", "input": 10**6, "output": 2 * 10**6})
    headers = {}
    for name in TENANTS:
        terms = {"most_tokens": 100_000, "most_micros": 10**9}
        act_at(folder, "/admin/tenants", {"tenant": name, "terms": terms})
        headers[name] = bearer(act_at(folder, "/admin/keys", {"tenant": name})["secret"])
    daemon = await asyncio.to_thread(
        start_daemon, env={"FAKE_STEP_MS": "10"}, **{"store.path": folder}
    )

    def held(tenant: str) -> list[dict[str, Any]]:
        return [row for row in rows_of(folder, "reservations") if row["tenant"] == tenant]

    told = {name: [0] for name in TENANTS}
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        # One that is over: its row has a valid seal.
        first = asyncio.create_task(streamed(http, headers["old"], [0]))
        await until(lambda: held("old"))
        (old,) = held("old")
        first.cancel()
        await until(lambda: not held("old"))
        sent = [
            asyncio.create_task(streamed(http, headers[name], told[name]))
            for name in TENANTS
            if name != "victim"
        ]
        await until(lambda: min(told[name][0] for name in TENANTS if name != "victim") > 20)
        execute(folder, "UPDATE reservations SET period_begin = 7 WHERE tenant = 'late'")
        daemon.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(daemon.process.wait)
        await asyncio.gather(*sent, first, return_exceptions=True)
    before = {row["tenant"]: row["used_tokens"] for row in rows_of(folder, "budgets")}
    prices = "input_price = 0, cached_price = 0, output_price = 0"
    execute(
        folder,
        "UPDATE reservations SET tokens = 1, prompt_tokens = 1, micros = 0, "
        f"{prices} WHERE tenant = 'edited'",
        "UPDATE reservations SET tokens = 90000, output_price = 900000000 WHERE tenant = 'dear'",
        "DELETE FROM reservations WHERE tenant = 'deleted'",
        "UPDATE reservations SET tenant = 'victim' WHERE tenant = 'moved'",
        "DELETE FROM reservations WHERE tenant = 'old'",
        "DELETE FROM usage WHERE tenant = 'old'",
    )
    (row,) = held("honest")
    marked = marks.read_marks(folder / marks.NAME)[row["id"]].generated
    forged = row | {"id": "use_forged", "tenant": "victim"}
    put(folder, replaced("reservations", old), replaced("reservations", forged))
    daemon = await asyncio.to_thread(start_daemon, **{"store.path": folder})
    assert daemon.stop() == 0

    budgets = {row["tenant"]: row for row in rows_of(folder, "budgets")}
    used = {name: budgets[name]["used_tokens"] - before[name] for name in TENANTS}
    for name in TENANTS:
        count = told[name][0]
        if name == "victim":
            assert (used[name], budgets[name]["used_micros"]) == (0, 0)
            continue
        assert PROMPT + count <= used[name] <= PROMPT + 500, name
        assert budgets[name]["used_micros"] >= PROMPT * 1 + count * 2, name
        assert budgets[name]["reserved_tokens"] == budgets[name]["reserved_micros"] == 0
    assert used["honest"] == PROMPT + marked
    broken = [row for row in rows_of(folder, "audit") if row["action"] == audit.BROKEN]
    fault = json.loads(broken[-1]["detail"])["fault"]
    assert "was changed" in fault
    assert daemon.said("was changed")
