"""Fair queue: equals an exhaustive model; tenants' shares."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd.errors import NotAdmitted, TenantNotAdmitted
from gatewayd.fairness.fair_queue import FairQueue, QueueSlot


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def served(costs: dict[str, float], slots: int, total: float) -> Counter[str]:
    """The service that tenants get which always have ten requests waiting."""
    clock, got = Clock(), Counter[str]()
    queue = FairQueue("thing", lambda: slots, most_waiting=1000, clock=clock)
    running: list[tuple[float, int, str, QueueSlot]] = []
    held = 0

    async def ask(tenant: str) -> None:
        nonlocal held
        slot = await queue.acquire(tenant)
        held += 1
        assert held <= slots
        running.append((clock.now + costs[tenant], held, tenant, slot))

    tasks = [asyncio.create_task(ask(tenant)) for tenant in costs for _ in range(10)]
    await settled()
    while sum(got.values()) < total:
        running.sort(key=lambda one: one[:3])
        end, _, tenant, slot = running.pop(0)
        clock.now = end
        got[tenant] += round(costs[tenant])
        held -= 1
        slot.release()
        tasks.append(asyncio.create_task(ask(tenant)))
        await settled()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return got


@pytest.mark.parametrize("slots", [1, 2, 5])
async def test_tenants_get_the_same_service_whatever_each_request_costs(slots: int) -> None:
    got = await served({"cheap": 1, "dear": 40, "middle": 7}, slots, 6000)
    assert max(got.values()) - min(got.values()) <= 2 * 40 * slots, got


async def test_a_newcomer_waits_for_one_request_at_most_whatever_waits() -> None:
    queue, order = FairQueue("thing", lambda: 1, most_waiting=1000), list[str]()
    slots: list[QueueSlot] = []

    async def ask(tenant: str) -> None:
        slots.append(await queue.acquire(tenant))
        order.append(tenant)

    tasks = [asyncio.create_task(ask("flood")) for _ in range(100)]
    await settled()
    tasks.append(asyncio.create_task(ask("good")))
    await settled()
    slots.pop().release()
    await settled()
    assert order == ["flood", "good"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_idleness_saves_nothing_up() -> None:
    clock = Clock()
    queue = FairQueue("thing", lambda: 1, most_waiting=100, clock=clock)
    for tenant, service in (("idle", 1.0), ("busy", 500.0)):
        with await queue.acquire(tenant):
            clock.now += service
    held = await queue.acquire("busy")
    order: list[str] = []

    async def ask(tenant: str) -> None:
        with await queue.acquire(tenant):
            order.append(tenant)
            clock.now += 1

    tasks = [asyncio.create_task(ask(t)) for t in ("idle",) * 6 + ("busy",) * 6]
    await settled()
    clock.now += 1
    held.release()
    await asyncio.gather(*tasks)
    assert 2 <= order[:6].count("idle") <= 4, order


async def test_one_slot_stays_free_for_another_active_tenant() -> None:
    clock = Clock()
    queue = FairQueue("thing", lambda: 3, most_waiting=100, clock=clock)
    (await queue.acquire("good")).release()
    tasks = [asyncio.create_task(queue.acquire("flood")) for _ in range(5)]
    await settled()
    assert queue.num_running == 2
    (await asyncio.wait_for(queue.acquire("good"), 30)).release()
    clock.now += 120  # nobody else any more
    queue.wake()
    await settled()
    assert queue.num_running == 3
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_tenant_fills_half_of_the_waiting_room_and_no_more() -> None:
    queue = FairQueue("thing", lambda: 1, most_waiting=100)
    await queue.acquire("flood")
    tasks = [asyncio.create_task(queue.acquire("flood")) for _ in range(50)]
    await settled()
    with pytest.raises(TenantNotAdmitted, match="its share of the 100"):
        await queue.acquire("flood")
    tasks += [asyncio.create_task(queue.acquire(f"other{at}")) for at in range(50)]
    await settled()
    assert queue.num_waiting == 100
    with pytest.raises(NotAdmitted, match="100 requests wait for the thing"):
        await queue.acquire("late")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert queue.num_waiting == 0


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_no_slot_is_lost_or_given_twice_whoever_leaves_when(seed: int, slots: int) -> None:
    asyncio.run(_leavers(random.Random(seed), slots))


async def _leavers(rng: random.Random, slots: int) -> None:
    queue = FairQueue("thing", lambda: slots, most_waiting=30)
    holding: list[QueueSlot] = []
    tasks: list[asyncio.Task[None]] = []

    async def ask(tenant: str) -> None:
        holding.append(await queue.acquire(tenant))

    for _ in range(60):
        match rng.randrange(4):
            case 0 | 1:
                tasks.append(asyncio.create_task(ask(rng.choice("abc"))))
            case 2 if holding:
                slot = holding.pop(rng.randrange(len(holding)))
                slot.release()
                slot.release()  # does nothing
            case _ if tasks:
                rng.choice(tasks).cancel()
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
    await settled()
    assert queue.num_running == len(holding) <= slots
    waiting = [task for task in tasks if not task.done()]
    assert queue.num_waiting == len(waiting)
    assert len(holding) >= min(slots - 1, len(holding) + len(waiting))
    for task in waiting:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for slot in holding:
        slot.release()
    assert (queue.num_running, queue.num_waiting) == (0, 0)


async def test_within_a_tenant_the_smallest_and_the_oldest_have_every_other_turn() -> None:
    queue, order = FairQueue("thing", lambda: 1, most_waiting=10_000), list[int]()
    held = await queue.acquire("one")

    async def ask(size: int) -> None:
        with await queue.acquire("one", size):
            order.append(size)

    tasks = [asyncio.create_task(ask(size)) for size in (900, 800, 30, 700, 20, 10)]
    await settled()
    held.release()
    await asyncio.gather(*tasks)
    assert order == [10, 900, 20, 800, 30, 700]


async def test_what_is_large_takes_more_of_the_waiting_room() -> None:
    queue = FairQueue("thing", lambda: 1, most_waiting=100)
    held = await queue.acquire("flood")
    tasks = [asyncio.create_task(queue.acquire("flood", 20)) for _ in range(2)]
    await settled()
    with pytest.raises(TenantNotAdmitted):
        await queue.acquire("flood", 30)
    tasks.append(asyncio.create_task(queue.acquire("flood", 10)))
    tasks.append(asyncio.create_task(queue.acquire("other", 80)))  # one alone always may
    await settled()
    assert queue.num_waiting == 4
    with pytest.raises(NotAdmitted, match="4 requests wait"):
        await queue.acquire("third")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    held.release()
    await asyncio.wait_for(queue.acquire("third", 100), 30)


async def test_one_that_is_restrained_leaves_a_slot_free_though_nobody_else_is_there() -> None:
    clock = Clock()
    queue = FairQueue("thing", lambda: 3, most_waiting=100, clock=clock)
    queue.throttle("bad", 60)
    tasks = [asyncio.create_task(queue.acquire("bad")) for _ in range(5)]
    await settled()
    assert queue.num_running == 2
    clock.now += 61
    tasks[0].result().release()
    await settled()
    assert queue.num_running == 3
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_slot_that_is_granted_to_one_who_leaves_is_free_again() -> None:
    queue = FairQueue("thing", lambda: 1, most_waiting=None)
    held = await queue.acquire("one")
    waiting = asyncio.create_task(queue.acquire("two"))
    await settled()
    held.release()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (queue.num_running, queue.num_waiting) == (0, 0)
    await asyncio.wait_for(queue.acquire("three"), 30)


async def test_where_the_room_has_no_limit_all_wait() -> None:
    queue = FairQueue("thing", lambda: 1, most_waiting=None)
    held = await queue.acquire("one")
    tasks = [asyncio.create_task(queue.acquire("one", 10**9)) for _ in range(2000)]
    await settled()
    assert queue.num_waiting == 2000
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    held.release()
    assert (queue.num_running, queue.num_waiting) == (0, 0)
