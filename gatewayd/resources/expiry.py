"""Expiry of files, responses and batches: deletes a bounded number at a time."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, select, update

from gatewayd.resources.batches import records as batch_records
from gatewayd.resources.files import records as file_records
from gatewayd.resources.files.content_store import ContentStore
from gatewayd.resources.responses import records as response_records
from gatewayd.store.clock import StoreClock
from gatewayd.store.database import Database
from gatewayd.store.tables import files, responses

_log = logging.getLogger(__name__)

AT_ONCE = 1000
"""Per kind and transaction: no other writer can proceed meanwhile."""

_AHEAD_SECONDS = 3600
"""Creation times further in the future were written with a wrong clock."""


class ExpiredObjects(NamedTuple):
    """Deleted objects: ids of files, and numbers of responses and batches."""

    files: list[str]
    responses: int
    batches: int


@dataclass(eq=False, repr=False)
class Expiry:
    """Deletes expired objects.

    Args:
        database: database of the rows.
        vault: store of files' contents.
        clock: decides what has expired.
        keep_seconds: lifetime of responses.
        batch_seconds: lifetime of batches, from their end.
    """

    _database: Database
    _vault: ContentStore
    _clock: StoreClock
    _keep_seconds: float
    _batch_seconds: float

    async def sweep(self) -> None:
        """Delete all expired objects; other requests proceed between transactions.

        Raises:
            StoreUnavailable: the store cannot be written.
        """
        # While a jump is pending it is unknown which of the two times is wrong.
        if self._clock.is_steady:
            await self._database.write(self._reset_future_times)
        num_files = num_responses = num_batches = 0
        try:
            while True:
                # Rows first: at the latest the next start deletes contents without rows.
                gone = await self._database.write(self._delete)
                await asyncio.to_thread(self._vault.remove, gone.files)
                num_files += len(gone.files)
                num_responses += gone.responses
                num_batches += gone.batches
                if max(len(gone.files), gone.responses, gone.batches) < AT_ONCE:
                    return
        finally:
            if num_files or num_responses or num_batches:
                _log.info(
                    "deleted expired objects: %d files, %d responses, %d batches",
                    *(num_files, num_responses, num_batches),
                )

    def _reset_future_times(self, connection: Connection) -> None:
        """Reset creation times in the future, written with a wrong clock, to the present."""
        now = int(self._clock.now())
        for table in (files, responses):
            ahead = table.c.created_at > now + _AHEAD_SECONDS
            values: dict[str, object] = {"created_at": now}
            if table is files:
                # SQL computes this from the old row, so that the file keeps its lifetime.
                values["expires_at"] = files.c.expires_at - files.c.created_at + now
            connection.execute(update(table).where(ahead).values(values))

    def _delete(self, connection: Connection) -> ExpiredObjects:
        now = self._clock.now()
        names = file_records.remove_expired(connection, now, AT_ONCE)
        return ExpiredObjects(
            list(names),
            _delete_responses(connection, now - self._keep_seconds),
            batch_records.remove_older(connection, now - self._batch_seconds, AT_ONCE),
        )


def _delete_responses(connection: Connection, before: float) -> int:
    """Delete the oldest expired responses; those of the same second together."""
    earliest = select(responses.c.created_at).where(
        responses.c.created_at < before, responses.c.status.not_in(response_records.RUNNING)
    )
    last = earliest.order_by(responses.c.created_at).offset(AT_ONCE - 1).limit(1)
    second = connection.execute(last).scalar()
    # Up to the second of the last of `AT_ONCE`; None if there are fewer.
    end = before if second is None else min(before, second + 1)
    response_records.remove_older(connection, end)
    # Rows of the last statement, without those that its triggers changed.
    return int(connection.exec_driver_sql("SELECT changes()").scalar_one())
