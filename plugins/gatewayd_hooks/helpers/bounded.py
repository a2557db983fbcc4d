"""Calls that take no longer, and go no deeper, than they may: for guides.

Libraries compile grammars by recursion, in calls that cannot be interrupted. A long chain of
references needs more stack than a thread usually has, and one that runs out of it ends the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from gatewayd_hooks.guiding import GrammarRefused

STACK_BYTES = 64 << 20
"""Of a thread; only what is used is memory."""
_AT_ONCE = 8
_starting = threading.Lock()  # the size of stacks is the process's

T = TypeVar("T")


class Bounded:
    """Compiles in threads of its own; one that takes too long is left to its end."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._places = threading.BoundedSemaphore(_AT_ONCE)

    def run(self, call: Callable[[], T]) -> T:
        """What a call gives.

        Raises:
            GrammarRefused: it takes too long.
        """
        if not self._places.acquire(timeout=self._seconds):
            raise GrammarRefused(f"{_AT_ONCE} grammars that take long are compiled; try again")
        done: Future[T] = Future()
        with _starting:
            before = threading.stack_size(STACK_BYTES)
            try:
                threading.Thread(target=self._work, args=(call, done), daemon=True).start()
            finally:
                threading.stack_size(before)
        try:
            return done.result(self._seconds)
        except TimeoutError:
            raise GrammarRefused(
                f"compiling it takes longer than {self._seconds:g} s; make it simpler"
            ) from None

    def _work(self, call: Callable[[], T], done: Future[T]) -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by who waits
            done.set_exception(error)
        finally:
            self._places.release()
