"""Manually advanced clock, for tests of strategies that measure time."""

from __future__ import annotations

from typing import Any


class Clock:
    """Stands for the module ``time``.

    Attributes:
        now: seconds that have passed.
        processor: seconds in which this thread had a processor.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.processor = 10.0

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.processor

    def spend(self, seconds: float) -> None:
        """Work, on a processor of one's own."""
        self.now += seconds
        self.processor += seconds

    def wait(self, seconds: float) -> None:
        """Sleep, or be kept from the processor."""
        self.now += seconds

    def before(self, call: Any, seconds: float) -> Any:
        """A call that takes so long."""

        def slow(*args: Any, **kwargs: Any) -> Any:
            self.spend(seconds)
            return call(*args, **kwargs)

        return slow
