"""Start scheduler: simultaneous requests start over several loop iterations, by tenant."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from gatewayd.fairness.fair_queue import current_tenant
from gatewayd.http.bodies import BodyBudget
from gatewayd.http.server.request_gate import RequestGate
from gatewayd.http.server.start_scheduler import _MOST_RESUMED, _SECONDS, StartScheduler
from gatewayd.tenants.account import RequestTerms, TenantAccount
from gatewayd.tenants.limits import TenantLimits, current_slot
from gatewayd.tenants.principal import IN_SCOPE, OPERATOR, Principal, current_principal


async def test_a_flood_leaves_turns_to_others_and_the_next_tenant_is_not_behind_it() -> None:
    turns, order = StartScheduler(), list[str]()

    async def request(tenant: str) -> None:
        if not turns.may_start():
            await turns.wait(tenant)
        order.append(tenant)
        time.sleep(_SECONDS / 4)  # noqa: ASYNC251 - the work of a request holds the loop

    gaps, last = list[float](), time.perf_counter()
    tasks = [asyncio.create_task(request("flood")) for _ in range(100)]
    tasks.append(asyncio.create_task(request("good")))
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        now = time.perf_counter()
        gaps.append(now - last)
        last = now
    assert order.count("flood") == 100
    assert order.index("good") < 20, "tenants come one after the other"
    assert len(gaps) > 10, "100 in one turn would be one gap"
    await asyncio.sleep(0)
    assert not turns._waiting
    assert turns.may_start()
    assert _MOST_RESUMED < 20


async def test_who_is_cancelled_while_it_waits_takes_nobodys_turn() -> None:
    turns = StartScheduler()
    tasks = [asyncio.create_task(turns.wait("a")) for _ in range(50)]
    await asyncio.sleep(0)
    for task in tasks[:40]:
        task.cancel()
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert [task.cancelled() for task in tasks[-10:]] == [False] * 10
    await asyncio.sleep(0)
    assert not turns._waiting


async def test_the_work_of_a_request_is_its_senders_and_nothing_of_the_last_one_stays() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((current_tenant(), current_principal(), current_slot() is not None))

    async def nothing(*_: Any) -> Any:
        return {}

    gate = RequestGate(app, lambda scope: None, BodyBudget(1 << 20))
    terms = RequestTerms(TenantLimits(concurrency=3))
    limited = Principal(
        tenant="a",
        scopes=frozenset(("infer",)),
        account=TenantAccount("a", terms, None, b""),  # type: ignore[arg-type]
    )
    free = Principal(
        tenant="b",
        scopes=frozenset(("infer",)),
        account=TenantAccount("b", RequestTerms(), None, b""),  # type: ignore[arg-type]
    )
    for principal in (OPERATOR, limited, OPERATOR, free):
        client = ("192.0.2.7", 4000)
        scope = {"type": "http", "method": "POST", "path": "/x", "client": client}
        await gate({**scope, IN_SCOPE: principal}, nothing, nothing)
    everybody = ("@192.0.2.7", OPERATOR, False)
    assert seen == [everybody, ("a", limited, True), everybody, ("b", free, False)]
