"""Fair threads: a newcomer waits for one job at most."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable

import pytest

from gatewayd.fairness.fair_queue import current_tenant, set_current_tenant
from gatewayd.fairness.fair_threads import FairThreads


class Jobs:
    """Jobs that end when they are told to, and who has them."""

    def __init__(self, threads: FairThreads) -> None:
        self.threads = threads
        self.running: list[tuple[str, threading.Event]] = []
        self.done: list[str] = []

    def ask(self, tenant: str) -> asyncio.Task[str]:
        async def run() -> str:
            set_current_tenant(tenant)
            return await self.threads.run(self.job(tenant))

        return asyncio.create_task(run())

    def job(self, tenant: str) -> Callable[[], str]:
        def work() -> str:
            end = threading.Event()
            self.running.append((current_tenant(), end))
            assert end.wait(30)
            self.done.append(tenant)
            return tenant

        return work

    async def until(self, tenants: list[str]) -> None:
        async with asyncio.timeout(30):
            while sorted(one for one, _ in self.running) != sorted(tenants):
                await asyncio.sleep(0.001)

    async def end(self, tenant: str) -> None:
        async with asyncio.timeout(30):
            while tenant not in [one for one, _ in self.running]:
                await asyncio.sleep(0.001)
        at = [one for one, _ in self.running].index(tenant)
        self.running.pop(at)[1].set()
        await asyncio.sleep(0.01)


async def test_a_newcomer_waits_for_one_job_and_a_tenant_then_leaves_a_thread_free() -> None:
    jobs = Jobs(FairThreads("test", 2))
    tasks = [jobs.ask("flood") for _ in range(10)]
    await jobs.until(["flood", "flood"])
    tasks.append(jobs.ask("good"))
    await asyncio.sleep(0.02)
    await jobs.until(["flood", "flood"])
    await jobs.end("flood")
    await jobs.until(["flood", "good"])
    await jobs.end("good")
    await jobs.until(["flood"])  # not both again: somebody else was here just now
    tasks.append(jobs.ask("good"))
    await jobs.until(["flood", "good"])
    await jobs.end("good")
    for _ in range(9):
        await jobs.end("flood")
    assert Counter(await asyncio.gather(*tasks)) == {"flood": 10, "good": 2}


async def test_a_job_keeps_its_slot_when_nobody_waits_for_it_any_more() -> None:
    jobs = Jobs(FairThreads("test", 1))
    first = jobs.ask("leaver")
    await jobs.until(["leaver"])
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    again, other = jobs.ask("leaver"), jobs.ask("good")
    await asyncio.sleep(0.02)
    await jobs.until(["leaver"])
    await jobs.end("leaver")
    await jobs.until(["good"])  # its time was charged to whoever left
    await jobs.end("good")
    await jobs.until(["leaver"])
    await jobs.end("leaver")
    assert [await again, await other] == ["leaver", "good"]


async def test_what_a_job_raises_is_raised_and_its_slot_is_free() -> None:
    threads = FairThreads("test", 1)

    def fails() -> None:
        raise LookupError("this")

    for _ in range(3):
        with pytest.raises(LookupError, match="this"):
            await threads.run(fails)
    assert await threads.run(lambda: 7) == 7


async def test_threads_that_rest_leave_half_of_the_time() -> None:
    threads = FairThreads("test", 1, rest=1.0)
    began = time.monotonic()
    await asyncio.gather(*[threads.run(lambda: time.sleep(0.05)) for _ in range(4)])
    assert time.monotonic() - began > 0.05 * (4 + 3) - 0.01


def test_another_event_loop_finds_every_thread_free() -> None:
    threads, end = FairThreads("test", 1), threading.Event()

    async def leave() -> None:
        task = asyncio.create_task(threads.run(end.wait))
        await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(leave())
    end.set()
    assert asyncio.run(threads.run(lambda: 7)) == 7


async def test_an_error_keeps_nothing_alive_that_its_frames_had() -> None:
    """A refused body of a megabyte stayed until the garbage collector came."""

    class Body:
        """Has a weak reference."""

    def refuse() -> None:
        raise ValueError("no")

    async def serve(body: Body) -> None:
        await threads.run(refuse)
        raise AssertionError(body)

    threads, body = FairThreads("test", 1), Body()
    seen = weakref.ref(body)
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            await serve(body)
        del body
        await asyncio.sleep(0)
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("rest", [0.5, 2.0])
async def test_a_thread_rests_for_as_long_as_it_should(rest: float) -> None:
    threads = FairThreads("test", 1, rest=rest)
    began = time.monotonic()
    for _ in range(3):
        await threads.run(lambda: time.sleep(0.04))
    assert time.monotonic() - began >= 3 * 0.04 + 2 * rest * 0.04


def test_a_closed_loop_is_not_counted() -> None:
    threads = FairThreads("test", 1, rest=1000.0)
    loop = asyncio.new_event_loop()

    async def leave_a_thread_resting() -> None:
        await threads.run(lambda: time.sleep(0.01))
        assert threads.stats.running == 1

    loop.run_until_complete(leave_a_thread_resting())
    loop.close()
    assert threads.stats.running == 0
