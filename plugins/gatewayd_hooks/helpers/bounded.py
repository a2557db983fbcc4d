"""Calls with bounded time and sufficient stack, for guides.

Libraries compile grammars by recursion, in calls that cannot be interrupted. A long chain of
references needs more stack than a thread usually has, and a stack overflow ends the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from gatewayd_hooks.guiding import GrammarRefused

STACK_BYTES = 64 << 20
"""Stack size of a thread; only used pages take memory."""
_AT_ONCE = 8
_starting = threading.Lock()  # the stack size is process-wide

T = TypeVar("T")


class Bounded:
    """Runs calls in separate threads; a call that exceeds its time limit continues unobserved."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._places = threading.BoundedSemaphore(_AT_ONCE)

    def run(self, call: Callable[[], T]) -> T:
        """Return the result of a call.

        Raises:
            GrammarRefused: it takes too long.
        """
        # A call over its limit still has a place: what it compiles cannot be interrupted.
        if not self._places.acquire(timeout=self._seconds):
            raise GrammarRefused(f"{_AT_ONCE} slow grammars are being compiled already; try again")
        done: Future[T] = Future()
        with _starting:
            before = threading.stack_size(STACK_BYTES)
            try:
                # A daemon thread, so that a call that never returns does not block the exit of the
                # process.
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
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            done.set_exception(error)
        finally:
            self._places.release()
