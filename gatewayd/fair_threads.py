"""A few threads that tenants share: turns go by the time that each has had of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar
from weakref import WeakKeyDictionary

from gatewayd.fair_queue import FairQueue, Standing, on_behalf_of

T = TypeVar("T")


class FairThreads:
    """Threads of one kind of work, for whichever tenant a task works for.

    A slot is held until its job has ended, whoever has stopped waiting for it: a thread cannot be
    stopped, and a client that leaves and comes again would have all of them.

    Args:
        name: of the threads.
        count: of them; few, for each takes a turn at the interpreter before the event loop's.
        rests: whether a thread is idle after each job for as long as it took, for work that holds
            the interpreter: half of the time is for everything else then.
    """

    def __init__(self, name: str, count: int, *, rests: bool = False) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._name, self._count, self._rests = name, count, rests
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, FairQueue] = WeakKeyDictionary()

    @property
    def queue(self) -> FairQueue:
        """Of the event loop that runs; its futures are of no use to another."""
        loop = asyncio.get_running_loop()
        queue = self._queues.get(loop)
        if queue is None:
            # What is at the gateway at once is bounded where it comes in.
            queue = FairQueue(self._name, lambda: self._count, most_waiting=None)
            self._queues[loop] = queue
        return queue

    @property
    def standing(self) -> Standing:
        """How its queues stand now, together."""
        each = [queue.standing for queue in self._queues.values()]
        return Standing(sum(one.running for one in each), sum(one.waiting for one in each))

    async def run(self, work: Callable[[], T]) -> T:
        """Work in a thread, when it is the tenant's turn; what it raises is raised here."""
        loop = asyncio.get_running_loop()
        slot = await self.queue.acquire(on_behalf_of())
        began = time.monotonic()
        # Taken out when it has its result: the frame of an error that led back to the error would
        # keep all that its frames have, a large body say, until the garbage collector comes.
        results: list[asyncio.Future[T]] = [loop.create_future()]

        def end(job: Future[T]) -> None:
            result = results.pop()
            if self._rests:
                loop.call_later(time.monotonic() - began, slot.release)
            else:
                slot.release()
            if result.done():  # nobody waits any more
                return
            if (error := job.exception()) is not None:
                result.set_exception(error)
            else:
                result.set_result(job.result())

        def over(job: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(end, job)

        try:
            # Not ``run_in_executor``: cancelling whoever waits must not end the job's slot, and
            # chaining two futures costs as much as encoding a short text.
            self._pool.submit(copy_context().run, work).add_done_callback(over)
        except BaseException:
            slot.release()
            raise
        return await results[0]
