"""Persists latency records of ended requests: lengths and times, no content."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec
from sqlalchemy import Connection, Table, delete, func, insert, or_, select

from gatewayd.store.clock import StoreClock
from gatewayd.store.database import Database
from gatewayd.store.tables import ledgers, refusals
from gatewayd.tracing.explanation import explanation
from gatewayd.tracing.latency_record import LatencyRecord
from gatewayd.wire.requests import Explanation

AT_ONCE = 500
"""Maximum of rows written per second, in one transaction; excess rows are only counted."""
REFUSED_AT_ONCE = 20
"""Maximum of refused requests' rows per second, so that a flood does not wear out the disk."""
_REFUSED_SHARE = 5
"""Refused requests get 1 / this of all rows, exclusively, so that they evict no served ones."""
_SECONDS = 1.0
_DAY = 86_400


class Archive:
    """Archive of latency records in the store.

    Args:
        database: the store's.
        clock: decides which rows have expired.
        days: retention of rows; 0 stores none.
        rows: maximum number of rows; the oldest are deleted first.

    Attributes:
        dropped: requests not stored because of the limits per second.
    """

    def __init__(self, database: Database, clock: StoreClock, *, days: float, rows: int) -> None:
        self._database = database
        self._clock = clock
        self._days = days
        self._rows = rows
        self._pending: list[LatencyRecord] = []
        self._refused: list[LatencyRecord] = []
        self.dropped = 0

    def add(self, record: LatencyRecord) -> None:
        """Buffer the record of an ended request, to be written in a batch."""
        self._add(record, self._pending, AT_ONCE)

    def refuse(self, record: LatencyRecord) -> None:
        """Buffer the record of a request that was refused before reaching an engine."""
        self._add(record, self._refused, REFUSED_AT_ONCE)

    def _add(self, record: LatencyRecord, pending: list[LatencyRecord], most: int) -> None:
        if self._days <= 0:
            return
        if len(pending) < most:
            pending.append(record)
        else:
            self.dropped += 1

    async def run(self) -> None:
        """Write once a second, until cancelled."""
        while True:
            await asyncio.sleep(_SECONDS)
            self.flush()

    def flush(self) -> None:
        """Submit buffered records to the database, without waiting."""
        pending, self._pending = self._pending, []
        refused, self._refused = self._refused, []
        if pending:
            self._database.submit(partial(_write, ledgers, pending))
        if refused:
            self._database.submit(partial(_write, refusals, refused))

    async def find(self, request_id: str) -> Explanation | None:
        """Find the latest explanation by ``x-request-id`` or by the gateway's own id.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        found = await self._database.read(partial(_find, request_id))
        return None if found is None else msgspec.json.decode(found, type=Explanation)

    async def prune(self) -> None:
        """Delete expired rows and those beyond the maximum number.

        Raises:
            StoreUnavailable: the store cannot be written.
        """
        # While the clock is not trusted nothing expires by it (ADR 0017).
        since = self._clock.now() - self._days * _DAY if self._clock.is_steady else 0.0
        refused = self._rows // _REFUSED_SHARE
        await self._database.write(partial(_prune, ledgers, since, self._rows - refused))
        await self._database.write(partial(_prune, refusals, since, refused))


def _write(table: Table, pending: Sequence[LatencyRecord], connection: Connection) -> None:
    # Runs in the writer's thread, so explaining the requests does not block the event loop.
    encode = msgspec.json.Encoder().encode
    rows = [
        {
            "request_id": record.request_id,
            "answered_id": record.answered_id,
            "unix": int(record.unix),
            "explanation": encode(explanation(record)),
        }
        for record in pending
    ]
    connection.execute(insert(table), rows)


def _find(request_id: str, connection: Connection) -> bytes | None:
    latest: tuple[int, bytes] | None = None
    for table in (ledgers, refusals):
        is_it = or_(table.c.request_id == request_id, table.c.answered_id == request_id)
        query = select(table.c.unix, table.c.explanation).where(is_it)
        found = connection.execute(query.order_by(table.c.number.desc()).limit(1)).first()
        if found is not None and (latest is None or found.unix > latest[0]):
            latest = found.unix, found.explanation
    return None if latest is None else latest[1]


def _prune(table: Table, since: float, most: int, connection: Connection) -> None:
    # Numbers grow by one per row, so the excess is found without counting rows.
    last = connection.execute(select(func.max(table.c.number))).scalar() or 0
    connection.execute(
        delete(table).where(or_(table.c.number <= last - most, table.c.unix < since))
    )
