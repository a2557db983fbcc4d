"""A small thread pool that tenants share by fair queueing, charged by the time each has used."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar
from weakref import WeakKeyDictionary

from gatewayd.fairness.fair_queue import FairQueue, QueueStats, current_tenant

T = TypeVar("T")


class FairThreads:
    """A pool for one kind of work; work is charged to the tenant of the calling task.

    A slot is held until its job has ended, even if the caller was cancelled: a thread cannot be
    stopped, and a client that disconnects and reconnects could otherwise take all of them.

    Args:
        name: prefix of the threads' names.
        count: number of threads; small, since each competes with the event loop for the interpreter
            lock.
        rest: idle time of a thread after each job, as a multiple of the job's time. With 1, half of
            the time remains for others that need the same core, or the interpreter.
    """

    def __init__(self, name: str, count: int, *, rest: float = 0.0) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._name, self._count, self._rest = name, count, rest
        # Weak keys: the queue of an event loop that is gone goes with it.
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, FairQueue] = WeakKeyDictionary()

    @property
    def queue(self) -> FairQueue:
        """The queue of the running event loop: futures belong to one loop."""
        loop = asyncio.get_running_loop()
        queue = self._queues.get(loop)
        if queue is None:
            # Requests in flight are bounded where they enter the gateway.
            queue = FairQueue(self._name, lambda: self._count, most_waiting=None)
            self._queues[loop] = queue
        return queue

    @property
    def stats(self) -> QueueStats:
        """The current counts, over all event loops that still run."""
        # A loop may be closed while a thread rests: its slot is never released.
        open_queues = [queue for loop, queue in self._queues.items() if not loop.is_closed()]
        each = [queue.stats for queue in open_queues]
        return QueueStats(sum(one.running for one in each), sum(one.waiting for one in each))

    async def run(self, work: Callable[[], T]) -> T:
        """Run a job in a thread once the tenant is scheduled; its exceptions propagate."""
        loop = asyncio.get_running_loop()
        slot = await self.queue.acquire(current_tenant())
        began = time.monotonic()
        # Removed once it has its result: otherwise an error and the frames in its traceback, with a
        # large body for example, would reference each other until the next garbage collection.
        results: list[asyncio.Future[T]] = [loop.create_future()]

        def end(job: Future[T]) -> None:
            result = results.pop()
            if self._rest:
                loop.call_later(self._rest * (time.monotonic() - began), slot.release)
            else:
                slot.release()
            if result.done():  # its caller was cancelled
                return
            if (error := job.exception()) is not None:
                result.set_exception(error)
            else:
                result.set_result(job.result())

        def over(job: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(end, job)

        try:
            # Not ``run_in_executor``: cancelling the caller must not end the job's slot, and
            # chaining two futures costs as much as encoding a short text.
            self._pool.submit(copy_context().run, work).add_done_callback(over)
        except BaseException:
            slot.release()
            raise
        return await results[0]
