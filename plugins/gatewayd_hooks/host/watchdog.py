"""Interrupts a strategy that does not return, by a timer signal in the main thread.

It interrupts Python code and sleeps. A call that is stuck inside a library does not notice; its
process must then be replaced.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gatewayd_hooks.host.plugin_times import Hang, PluginTimes

_LOOKS = 4
"""Number of checks per time limit: a call may start after the timer was set."""


class Watchdog:
    """Checks the running call on a timer; without a main thread or timers it does nothing.

    Args:
        plugin_times: knows the running call and its start time.
        seconds: limit of a call.
        open_seconds: limit of an ``open``, which may load a model; None for the same.

    Attributes:
        is_armed: whether strategies may be called.
    """

    def __init__(
        self, plugin_times: PluginTimes, seconds: float, open_seconds: float | None = None
    ) -> None:
        self.is_armed = False
        self._plugin_times = plugin_times
        self._open_seconds = open_seconds
        self._seconds = self._limit = seconds
        self._works = threading.current_thread() is threading.main_thread() and hasattr(
            signal, "setitimer"
        )
        if self._works:
            signal.signal(signal.SIGALRM, self._ring)

    def arm(self, seconds: float | None = None) -> None:
        """Start monitoring calls; restarts the timer.

        Args:
            seconds: limit of a call this time; None for the usual.
        """
        self.is_armed = True
        if self._works:
            self._limit = seconds = self._seconds if seconds is None else seconds
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds / _LOOKS)

    def disarm(self) -> None:
        """Stop monitoring until it is armed again."""
        self.is_armed = False
        if self._works:
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    @contextmanager
    def armed(self, seconds: float | None = None) -> Iterator[None]:
        """Arm within a ``with`` statement; see ``arm``."""
        self.arm(seconds)
        try:
            yield
        finally:
            self.disarm()

    def _ring(self, number: int, frame: FrameType | None) -> None:
        plugin_times = self._plugin_times
        # The timer also rings between calls.
        if plugin_times.current is None:
            return
        limit = self._limit
        if self._open_seconds is not None and plugin_times.current.method == "open":
            limit = self._open_seconds
        if time.perf_counter() - plugin_times.since < limit:
            return
        where = "an unknown place"
        if frame is not None:
            where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        raise Hang(f"{where} for {limit:g} s")
