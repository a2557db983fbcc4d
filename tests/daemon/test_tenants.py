"""Tenants: budgets survive random kills; managed over the admin socket.

What must hold at each start: nothing is reserved, what was used is the sum of usage, within the
budget, and no less than what clients were told. ``pytest -m slow tests/daemon/test_tenants.py -s``
kills sixty times.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from gatewayd.admin.client import call
from gatewayd.store.database import connect
from gatewayd.store.tables import audit, budgets, reservations, usage
from gatewayd.tenants.actions import action_of, body_of
from gatewayd.tenants.tamper_evidence.audit import BROKEN
from gatewayd.tenants.tenancy import act_offline
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import bearer, check_books

CLIENTS = 64
MOST = 12
"""Tokens of an answer."""


def act(store: Path, path: str, body: object) -> Any:
    engine = connect(store / "gatewayd.db")
    action, params = action_of("POST", path)
    try:
        return act_offline(engine, store, action, params, body_of(action, body), "a test")
    finally:
        engine.dispose()


def rows(store: Path, table: Any) -> list[Any]:
    """Also while a daemon runs, or after one that died."""
    engine = connect(store / "gatewayd.db").execution_options(readonly=True)
    try:
        with engine.connect() as connection:
            return list(connection.execute(select(table)))
    finally:
        engine.dispose()


def settled(store: Path) -> Any:
    """The budget of tenant a, once the books are exact and nothing is reserved."""
    engine = connect(store / "gatewayd.db").execution_options(readonly=True)
    with engine.connect() as connection:
        check_books(connection)
    engine.dispose()
    (row,) = [one for one in rows(store, budgets) if one.tenant == "a"]
    assert row.reserved_tokens == 0
    assert rows(store, reservations) == []
    return row


@dataclass
class Told:
    """What clients were told.

    Attributes:
        tokens: of requests that were answered.
        answered: how many.
        is_spent: whether one was told that nothing is left.
    """

    tokens: int = 0
    answered: int = 0
    is_spent: bool = False
    wrong: list[str] = field(default_factory=list)


async def _client(number: int, url: list[str], key: str, told: Told) -> None:
    rng = random.Random(number)
    async with httpx.AsyncClient(timeout=60) as http:
        while not told.is_spent:
            body = {
                "model": "nano",
                "prompt": [rng.randint(300, 900) for _ in range(rng.randint(1, 12))],
                "max_tokens": rng.randint(1, MOST),
                "n": rng.randint(1, 2),
                "ignore_eos": True,
            }
            try:
                answer = await http.post(f"{url[0]}/v1/completions", json=body, headers=bearer(key))
            except httpx.HTTPError:  # it was killed
                await asyncio.sleep(0.05)
                continue
            if answer.status_code == 200:
                told.tokens += answer.json()["usage"]["total_tokens"]
                told.answered += 1
            elif answer.headers.get("x-should-retry") == "false":
                told.is_spent = answer.json()["error"]["code"] == "insufficient_quota"
            elif answer.status_code not in (429, 503):
                told.wrong.append(answer.text)
            else:
                await asyncio.sleep(rng.uniform(0, 0.05))


async def _campaign(start_daemon: Any, store: Path, kills: int, budget: int, seed: int) -> None:
    env, settings = {"FAKE_STEP_MS": "2", "FAKE_MAX_RUNNING": "32"}, {"store.path": store}
    act(store, "/admin/tenants", {"tenant": "a", "terms": {"most_tokens": budget}})
    key = act(store, "/admin/keys", {"tenant": "a"})["secret"]
    rng, told, lost = random.Random(seed), Told(), 0
    daemon = start_daemon(env=env, **settings)
    url = [daemon.url]
    clients = [asyncio.create_task(_client(n, url, key, told)) for n in range(CLIENTS)]
    for _ in range(kills):
        goal = told.answered + rng.randint(1, 40)
        async with asyncio.timeout(60):
            while told.answered < goal:
                await asyncio.sleep(0.005)
        await asyncio.sleep(rng.uniform(0, 0.02))
        daemon.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(daemon.process.wait)
        (row,) = [one for one in rows(store, budgets) if one.tenant == "a"]
        held = rows(store, reservations)
        lost += len(held)
        assert row.used_tokens + row.reserved_tokens <= budget
        assert sum(one.tokens for one in held) == row.reserved_tokens
        before = len(rows(store, usage))
        daemon = await asyncio.to_thread(start_daemon, env=env, wait=False, **settings)
        await asyncio.to_thread(daemon.wait_listening)
        assert len([one for one in rows(store, usage) if one.outcome == "lost"]) == lost
        assert len(rows(store, usage)) >= before + len(held)
        url[0] = daemon.url
    async with asyncio.timeout(60):
        await asyncio.gather(*clients)
    assert told.wrong == []
    assert told.is_spent
    assert daemon.stop() == 0
    row = settled(store)
    assert budget - 12 - 2 * MOST <= row.used_tokens <= budget
    assert told.tokens <= row.used_tokens
    assert lost > 0
    assert [one for one in rows(store, audit) if one.action == BROKEN] == []
    print(
        f"\n{kills} kills: {told.answered} requests answered, {lost} settled for the dead, "
        f"{row.used_tokens} of {budget} tokens used, {told.tokens} of them told"
    )


async def test_a_budget_is_kept_through_three_kills(
    start_daemon: Any, fresh_store: Path, tmp_path: Path
) -> None:
    store = copy_of(fresh_store, tmp_path / "store")
    await _campaign(start_daemon, store, kills=3, budget=3_500, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_budget_is_kept_through_sixty_kills(
    start_daemon: Any, fresh_store: Path, tmp_path: Path
) -> None:
    store = copy_of(fresh_store, tmp_path / "store")
    await _campaign(start_daemon, store, kills=60, budget=80_000, seed=2)


def test_an_operator_acts_on_a_running_daemon(start_daemon: Any, tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    daemon = start_daemon(**{"admin.socket": path, "store.path": tmp_path / "store"})

    def ask(method: str, route: str, body: object = None) -> Any:
        return call(str(path), method, route, body)

    def complete(key: str) -> int:
        body = {"model": "nano", "prompt": "hi", "max_tokens": 2}
        url = f"{daemon.url}/v1/completions"
        return httpx.post(url, json=body, headers=bearer(key), timeout=60).status_code

    ask("POST", "/admin/tenants", {"tenant": "a", "terms": {"most_tokens": 1000}})
    made = ask("POST", "/admin/keys", {"tenant": "a"})
    assert (complete(made["secret"]), complete("nothing")) == (200, 401)
    rotated = ask("POST", f"/admin/keys/{made['key']}/rotate", {})
    assert (complete(made["secret"]), complete(rotated["secret"])) == (401, 200)
    ask("PATCH", "/admin/tenants/a", {"most_tokens": 0})
    assert complete(rotated["secret"]) == 429
    (used,) = ask("GET", "/admin/usage?by=key")
    assert (used["tenant"], used["key_id"], used["requests"]) == ("a", made["key"], 2)
    assert abs(time.time() - used["last_at"]) < 60
    ask("DELETE", f"/admin/keys/{made['key']}")
    assert complete(rotated["secret"]) == 401
    found = ask("GET", "/admin/audit")
    assert found["fault"] is None
    assert [row["action"] for row in found["rows"]] == [
        *("key.revoke", "tenant.set", "key.rotate", "key.create", "tenant.create")
    ]
    assert all("uid " in row["actor"] for row in found["rows"])
    with contextlib.suppress(OSError):
        assert daemon.stop() == 0
    for secret in (made["secret"], rotated["secret"]):
        assert secret.split("_", 2)[2] not in daemon.log.read_text()
