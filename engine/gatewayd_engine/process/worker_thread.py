"""A background thread for work concurrent with steps, abandoned if it hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class WorkerThread:
    """Background thread that runs one function after another."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._asked: SimpleQueue[Callable[[], None] | None] | None = None
        self._is_idle = threading.Event()
        self._is_idle.set()

    def submit(self, work: Callable[[], None]) -> None:
        """Start a function; the previous one must have returned. It must not raise."""
        if self._asked is None:
            # A new queue and event: an abandoned thread may still set its own event when it
            # returns.
            self._asked = SimpleQueue()
            self._is_idle = threading.Event()
            # A daemon thread: a hanging function must not keep the engine from exiting.
            thread = threading.Thread(
                target=_serve, args=(self._asked, self._is_idle), name=self._name, daemon=True
            )
            thread.start()
        # Before the function is queued: the thread may finish it at once.
        self._is_idle.clear()
        self._asked.put(work)

    def wait(self, seconds: float) -> bool:
        """Wait until the function has returned; if it has not, abandon the thread."""
        if self._is_idle.wait(seconds):
            return True
        self.close()
        return False

    def close(self) -> None:
        """End the thread once the current function has returned."""
        if self._asked is not None:
            self._asked.put(None)
            self._asked = None


def _serve(asked: SimpleQueue[Callable[[], None] | None], is_idle: threading.Event) -> None:
    while (work := asked.get()) is not None:
        work()
        # Release the references of the function before the next one arrives.
        work = None
        is_idle.set()
