"""Congestion window: cost of a limit that a tenant's lines hit, and retry rate."""

from __future__ import annotations

import heapq

import pytest

from gatewayd.resources.batches.congestion_window import CongestionWindow

LIMIT = 4
SECONDS = 2000.0


class Day:
    """Lines of a second each, for a tenant that may have four at once.

    Args:
        pause: seconds after which a refusal says another attempt is worth it.
    """

    def __init__(self, pause: float) -> None:
        self.now = 0.0
        self.window = CongestionWindow(lambda: self.now)
        self.pauses: list[float] = []
        self.num_answered = 0
        self._pause = pause
        self._running: list[tuple[float, int]] = []

    def pass_by(self) -> None:
        while self.now < SECONDS:
            delay = self.window.delay
            if delay == 0:
                self._send()
                continue
            ends = [self._running[0][0]] if self._running else []
            if delay is not None:
                ends.append(self.now + delay)
            self.now = min(ends)
            while self._running and self._running[0][0] <= self.now:
                _, era = heapq.heappop(self._running)
                self.window.answered(era)
                self.window.end_line()
                self.num_answered += 1

    def _send(self) -> None:
        era = self.window.start_line()
        if len(self._running) < LIMIT:
            heapq.heappush(self._running, (self.now + 1.0, era))
        else:
            self.window.end_line()
            self.window.refused(era, self._pause)
            self.pauses.append(self._pause)


@pytest.mark.parametrize("pause", [0.25, 1.0, 5.0, 30.0])
def test_a_limit_costs_a_ninth_of_the_time_at_most(pause: float) -> None:
    day = Day(pause)
    day.pass_by()
    assert len(day.pauses) <= SECONDS / (9 * pause) + 2, len(day.pauses)
    assert day.num_answered >= 0.8 * LIMIT * SECONDS, "it sends as many as it may nearly always"


def test_more_is_tried_again_when_the_limit_may_be_another_one() -> None:
    day = Day(1.0)
    day.pass_by()
    assert len(day.pauses) >= SECONDS / (3 * 9), len(day.pauses)
