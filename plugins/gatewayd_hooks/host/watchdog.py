"""Interrupts a strategy that does not come back, by a timer's signal in the main thread.

It wakes whatever Python runs or sleeps in. A call that is stuck inside a library does not notice;
its process is then the one to be replaced.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

from gatewayd_hooks.host.ledger import Hang, Ledger

_LOOKS = 4
"""How often in the limit's time is looked: a call may begin after the timer was set."""


class Watchdog:
    """Looks at a ledger when its timer rings; without a main thread or timers it does nothing.

    Args:
        ledger: knows who runs and since when.
        seconds: that a call may take.
        open_seconds: that an ``open`` may take, which may load a model; None for no more.

    Attributes:
        is_armed: whether strategies may be called.
    """

    def __init__(self, ledger: Ledger, seconds: float, open_seconds: float | None = None) -> None:
        self.is_armed = False
        self._ledger = ledger
        self._open_seconds = open_seconds
        self._seconds = self._limit = seconds
        self._works = threading.current_thread() is threading.main_thread() and hasattr(
            signal, "setitimer"
        )
        if self._works:
            signal.signal(signal.SIGALRM, self._ring)

    def arm(self, seconds: float | None = None) -> None:
        """Strategies may be called from now on; the time starts again.

        Args:
            seconds: that a call may take this time; None for the usual.
        """
        self.is_armed = True
        if self._works:
            self._limit = seconds = self._seconds if seconds is None else seconds
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds / _LOOKS)

    def disarm(self) -> None:
        """None is called until it is armed again."""
        self.is_armed = False
        if self._works:
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        ledger = self._ledger
        if ledger.current is None:
            return
        limit = self._limit
        if self._open_seconds is not None and ledger.current.method == "open":
            limit = self._open_seconds
        if time.perf_counter() - ledger.since < limit:
            return
        where = "an unknown place"
        if frame is not None:
            where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        raise Hang(f"{where} for {limit:g} s")
