"""Counts of good and bad requests over the last minutes and hours, in buckets of fixed number."""

from __future__ import annotations

from collections.abc import Callable

BUCKET_SECONDS = 15
NUM_BUCKETS = 6 * 3600 // BUCKET_SECONDS


class Windows:
    """Good and bad requests, by when they ended; what is older than six hours is forgotten.

    Args:
        clock: seconds; monotonic.

    Attributes:
        good: since the start.
        bad: since the start.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._good = [0] * NUM_BUCKETS
        self._bad = [0] * NUM_BUCKETS
        self._now = int(clock() // BUCKET_SECONDS)
        self.good = self.bad = 0

    def add(self, *, is_good: bool) -> None:
        """Count a request that ends now."""
        at = self._advance() % NUM_BUCKETS
        if is_good:
            self.good += 1
            self._good[at] += 1
        else:
            self.bad += 1
            self._bad[at] += 1

    def share_bad(self, seconds: float) -> float:
        """Of the requests that ended in so many last seconds, those that were bad; 0 of none.

        The bucket that is being filled counts, beside as many whole ones as fit.
        """
        now = self._advance()
        count = min(NUM_BUCKETS, round(seconds / BUCKET_SECONDS) + 1)
        # Snapshots ask for all windows of all promises, and most are kept.
        bad = self._sum(self._bad, now, count) if self.bad else 0
        return bad / (self._sum(self._good, now, count) + bad) if bad else 0.0

    @staticmethod
    def _sum(buckets: list[int], now: int, count: int) -> int:
        end = now % NUM_BUCKETS + 1
        if count <= end:
            return sum(buckets[end - count : end])
        return sum(buckets[:end]) + sum(buckets[end - count :])

    def _advance(self) -> int:
        """Empty the buckets whose time has come again; which one is filled now."""
        now = int(self._clock() // BUCKET_SECONDS)
        for number in range(max(self._now + 1, now - NUM_BUCKETS + 1), now + 1):
            self._good[number % NUM_BUCKETS] = self._bad[number % NUM_BUCKETS] = 0
        self._now = now
        return now
