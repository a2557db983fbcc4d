"""Latency records of recent requests, indexed by request id."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import chain, islice

from gatewayd.tracing.latency_record import LatencyRecord

MOST = 4096
REFUSED = 1024
"""Capacity for refused requests; a separate ring, so that floods of them evict no served ones."""


class LatencyRecordRing:
    """Ring buffer of records with an index; the oldest entry is evicted when it is full.

    Args:
        most: capacity, in requests.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.entries: deque[LatencyRecord] = deque()
        self._by_request_id: dict[str, LatencyRecord] = {}
        self._by_answered_id: dict[str, LatencyRecord] = {}

    def add(self, record: LatencyRecord) -> None:
        """Add the record of an ended request."""
        self.entries.append(record)
        self._by_request_id[record.request_id] = record
        if record.answered_id != record.request_id:
            self._by_answered_id[record.answered_id] = record
        if len(self.entries) > self._most:
            oldest = self.entries.popleft()
            for names, name in (
                (self._by_request_id, oldest.request_id),
                (self._by_answered_id, oldest.answered_id),
            ):
                # A client may reuse an id; the index then refers to the latest request.
                if names.get(name) is oldest:
                    del names[name]

    def by_request_id(self, request_id: str) -> LatencyRecord | None:
        """Find a record by the gateway's own id."""
        return self._by_request_id.get(request_id)

    def by_answered_id(self, answered_id: str) -> LatencyRecord | None:
        """Find the latest record by the ``x-request-id`` of its response."""
        return self._by_answered_id.get(answered_id)


class RecentLatencyRecords:
    """Records of recent requests, in separate rings for served and refused ones.

    Args:
        most: capacity for served requests.
        keep: also called with the record of each served request.
        keep_refused: also called with the record of each refused request.
    """

    def __init__(
        self,
        most: int = MOST,
        keep: Callable[[LatencyRecord], None] = lambda record: None,
        keep_refused: Callable[[LatencyRecord], None] = lambda record: None,
    ) -> None:
        self._most = most
        self._keep, self._keep_refused = keep, keep_refused
        self._served, self._refused = LatencyRecordRing(most), LatencyRecordRing(min(most, REFUSED))

    def __len__(self) -> int:
        return len(self._served.entries)

    @property
    def most(self) -> int:
        """Capacity for served requests."""
        return self._most

    def add(self, record: LatencyRecord) -> None:
        """Add the record of an ended request that was sent to an engine."""
        self._keep(record)
        self._served.add(record)

    def refuse(self, record: LatencyRecord) -> None:
        """Add the record of a request that was refused before reaching an engine."""
        self._keep_refused(record)
        self._refused.add(record)

    def find(self, request_id: str) -> LatencyRecord | None:
        """Find a record by the gateway's own id, else the latest by its ``x-request-id``."""
        rings = self._served, self._refused
        # In all rings by the gateway's own id first: a client could send that id as its own.
        for named in (LatencyRecordRing.by_request_id, LatencyRecordRing.by_answered_id):
            found = [record for ring in rings if (record := named(ring, request_id)) is not None]
            if found:
                return max(found, key=_end)
        return None

    def backwards(self) -> Iterator[LatencyRecord]:
        """Iterate over served requests, newest first; nothing may be added during iteration."""
        return reversed(self._served.entries)

    def newest(self, count: int, model: str | None = None) -> list[LatencyRecord]:
        """Return the ``count`` newest requests, newest first; of one model unless it is None."""
        both = merge(
            reversed(self._served.entries), reversed(self._refused.entries), key=_end, reverse=True
        )
        return list(islice(_of(both, model), count))

    def slowest(self, count: int, model: str | None = None) -> list[LatencyRecord]:
        """Return the ``count`` slowest buffered requests, slowest first; as ``newest``."""
        both = chain(self._served.entries, self._refused.entries)
        return sorted(_of(both, model), key=lambda record: -record.seconds)[:count]


def _of(records: Iterable[LatencyRecord], model: str | None) -> Iterator[LatencyRecord]:
    return (record for record in records if model is None or record.model == model)


def _end(record: LatencyRecord) -> float:
    return record.end
