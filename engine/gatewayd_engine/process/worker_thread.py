"""A thread that works beside the steps, and is left behind if it does not come back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class WorkerThread:
    """Does one thing after the other in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._asked: SimpleQueue[Callable[[], None] | None] | None = None
        self._is_idle = threading.Event()
        self._is_idle.set()

    def begin(self, work: Callable[[], None]) -> None:
        """Do something; what is under way must be over. It must not raise."""
        if self._asked is None:
            self._asked = SimpleQueue()
            self._is_idle = threading.Event()
            # It must keep no engine from ending, whatever it is in.
            thread = threading.Thread(
                target=_serve, args=(self._asked, self._is_idle), name=self._name, daemon=True
            )
            thread.start()
        self._is_idle.clear()
        self._asked.put(work)

    def wait(self, seconds: float) -> bool:
        """Wait until it is done; whether it is. If not, another thread serves from now on."""
        if self._is_idle.wait(seconds):
            return True
        self.close()
        return False

    def close(self) -> None:
        """Let the thread end when it has done what it does."""
        if self._asked is not None:
            self._asked.put(None)
            self._asked = None


def _serve(asked: SimpleQueue[Callable[[], None] | None], is_idle: threading.Event) -> None:
    while (work := asked.get()) is not None:
        work()
        # What it was about is not to be kept until the next comes.
        work = None
        is_idle.set()
