"""Where the time of ended requests went, in the store: lengths and times, nothing that was said."""

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
from gatewayd.tracing.time_ledger import TimeLedger
from gatewayd.wire.requests import Explanation

AT_ONCE = 500
"""Rows of a second, in one transaction: of what comes beyond them only the figures are kept."""
REFUSED_AT_ONCE = 20
"""The same of those that no engine was sent: whoever hammers shall not wear out the disk."""
_REFUSED_SHARE = 5
"""One in so many rows is for these, and none of the others: they push out nobody else's."""
_SECONDS = 1.0
_DAY = 86_400


class Archive:
    """Of one daemon.

    Args:
        database: with the rows.
        clock: says what is over.
        days: that a row is kept; 0 keeps none.
        rows: that are kept at most, the newest.

    Attributes:
        dropped: requests that were too many for their second.
    """

    def __init__(self, database: Database, clock: StoreClock, *, days: float, rows: int) -> None:
        self._database = database
        self._clock = clock
        self._days = days
        self._rows = rows
        self._line: list[TimeLedger] = []
        self._refused: list[TimeLedger] = []
        self.dropped = 0

    def add(self, ledger: TimeLedger) -> None:
        """A request has ended; it is written with others."""
        self._add(ledger, self._line, AT_ONCE)

    def refuse(self, ledger: TimeLedger) -> None:
        """One has ended that no engine was sent."""
        self._add(ledger, self._refused, REFUSED_AT_ONCE)

    def _add(self, ledger: TimeLedger, line: list[TimeLedger], most: int) -> None:
        if self._days <= 0:
            return
        if len(line) < most:
            line.append(ledger)
        else:
            self.dropped += 1

    async def run(self) -> None:
        """Write once a second, until cancelled."""
        while True:
            await asyncio.sleep(_SECONDS)
            self.flush()

    def flush(self) -> None:
        """Write what has come, without waiting."""
        line, self._line = self._line, []
        refused, self._refused = self._refused, []
        if line:
            self._database.submit(partial(_write, ledgers, line))
        if refused:
            self._database.submit(partial(_write, refusals, refused))

    async def find(self, request_id: str) -> Explanation | None:
        """By the id that the client was told, or the gateway's own; the latest of them.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        found = await self._database.read(partial(_find, request_id))
        return None if found is None else msgspec.json.decode(found, type=Explanation)

    async def prune(self) -> None:
        """Delete what is too old or too much.

        Raises:
            StoreUnavailable: the store cannot be written.
        """
        since = self._clock.now() - self._days * _DAY if self._clock.is_steady else 0.0
        refused = self._rows // _REFUSED_SHARE
        await self._database.write(partial(_prune, ledgers, since, self._rows - refused))
        await self._database.write(partial(_prune, refusals, since, refused))


def _write(table: Table, line: Sequence[TimeLedger], connection: Connection) -> None:
    encode = msgspec.json.Encoder().encode
    rows = [
        {
            "request_id": ledger.request_id,
            "answered_id": ledger.answered_id,
            "unix": int(ledger.unix),
            "explanation": encode(explanation(ledger)),
        }
        for ledger in line
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
    last = connection.execute(select(func.max(table.c.number))).scalar() or 0
    connection.execute(
        delete(table).where(or_(table.c.number <= last - most, table.c.unix < since))
    )
