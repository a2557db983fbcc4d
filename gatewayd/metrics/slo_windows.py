"""Sliding windows of good and bad requests for SLO burn rates, in a fixed number of buckets."""

from __future__ import annotations

from collections.abc import Callable

BUCKET_SECONDS = 15
NUM_BUCKETS = 6 * 3600 // BUCKET_SECONDS


class SloWindows:
    """Ring of counts of good and bad requests by end time, covering the last six hours.

    Args:
        clock: seconds; monotonic.

    Attributes:
        good: total since the start.
        bad: total since the start.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._good = [0] * NUM_BUCKETS
        self._bad = [0] * NUM_BUCKETS
        self._now = int(clock() // BUCKET_SECONDS)
        self.good = self.bad = 0

    def add(self, *, is_good: bool) -> None:
        """Count a request in the current bucket."""
        at = self._advance() % NUM_BUCKETS
        if is_good:
            self.good += 1
            self._good[at] += 1
        else:
            self.bad += 1
            self._bad[at] += 1

    def bad_ratio(self, seconds: float) -> float:
        """Return the ratio of bad requests in the last ``seconds``; 0 without requests.

        Counts the current, partial bucket in addition to as many whole ones as fit.
        """
        now = self._advance()
        count = min(NUM_BUCKETS, round(seconds / BUCKET_SECONDS) + 1)
        # Shortcut: snapshots query all windows of all SLOs, and most have no bad request.
        bad = self._sum(self._bad, now, count) if self.bad else 0
        return bad / (self._sum(self._good, now, count) + bad) if bad else 0.0

    @staticmethod
    def _sum(buckets: list[int], now: int, count: int) -> int:
        end = now % NUM_BUCKETS + 1
        if count <= end:
            return sum(buckets[end - count : end])
        # The window wraps around: its older part is at the end of the ring.
        return sum(buckets[:end]) + sum(buckets[end - count :])

    def _advance(self) -> int:
        """Clear the buckets that are reused since the last call; return the current number."""
        now = int(self._clock() // BUCKET_SECONDS)
        if now == self._now:
            return now
        # At most one turn of the ring, however long no request has ended.
        for number in range(max(self._now + 1, now - NUM_BUCKETS + 1), now + 1):
            self._good[number % NUM_BUCKETS] = self._bad[number % NUM_BUCKETS] = 0
        self._now = now
        return now
