"""Where the time of ended requests went, in the store: lengths and times, nothing that was said."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec
from sqlalchemy import Connection, delete, func, insert, or_, select

from gatewayd.admin.explaining import explanation
from gatewayd.admin.wire import Explanation
from gatewayd.explain.ledger import Ledger
from gatewayd.store.clock import Clock
from gatewayd.store.database import Database
from gatewayd.store.tables import ledgers

AT_ONCE = 500
"""Rows of a second, in one transaction: of what comes beyond them only the figures are kept."""
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

    def __init__(self, database: Database, clock: Clock, *, days: float, rows: int) -> None:
        self._database = database
        self._clock = clock
        self._days = days
        self._rows = rows
        self._line: list[Ledger] = []
        self.dropped = 0

    def add(self, ledger: Ledger) -> None:
        """A request has ended; it is written with others."""
        if self._days <= 0:
            return
        if len(self._line) < AT_ONCE:
            self._line.append(ledger)
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
        if line:
            self._database.submit(partial(_write, line))

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
        await self._database.write(partial(_prune, since, self._rows))


def _write(line: Sequence[Ledger], connection: Connection) -> None:
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
    connection.execute(insert(ledgers), rows)


def _find(request_id: str, connection: Connection) -> bytes | None:
    is_it = or_(ledgers.c.request_id == request_id, ledgers.c.answered_id == request_id)
    query = select(ledgers.c.explanation).where(is_it).order_by(ledgers.c.number.desc()).limit(1)
    found: bytes | None = connection.execute(query).scalar()
    return found


def _prune(since: float, most: int, connection: Connection) -> None:
    last = connection.execute(select(func.max(ledgers.c.number))).scalar() or 0
    connection.execute(
        delete(ledgers).where(or_(ledgers.c.number <= last - most, ledgers.c.unix < since))
    )
