"""Whether the store takes anything new: what it may have in all, and what must stay free.

What was taken on is finished whatever this says: results of batches, responses in the background.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection

from gatewayd.errors import StoreFull
from gatewayd.files.vault import Vault
from gatewayd.store.database import Database
from gatewayd.store.faults import raise_for_client
from gatewayd.store.wal import size_of

ACCEPTED = "gatewayd.accepted"
"""The extension of a scope whose request was taken on before, as a line of a batch."""


class Used(NamedTuple):
    """What the store takes, in bytes.

    Attributes:
        files: contents, those that are just coming too.
        database: without what is free in it.
        log: beside the database.
        free: that its disk has left for this user.
    """

    files: int = 0
    database: int = 0
    log: int = 0
    free: int = 0

    @property
    def total(self) -> int:
        """All that it takes."""
        return self.files + self.database + self.log


class Room:
    """What may be taken in.

    Attributes:
        limit: bytes that the store may take.
        floor: bytes of its disk that must stay free.
        used: when somebody last looked.
        refusals: how many, by the setting at fault.

    Args:
        file: of the database.
        database: the same, open.
        vault: with contents.
        limit: bytes.
        floor: bytes.
    """

    def __init__(
        self, file: Path, database: Database, vault: Vault, *, limit: int, floor: int
    ) -> None:
        self.limit = limit
        self.floor = floor
        self.used = Used()
        self.refusals = Counter({"bytes": 0, "free_bytes": 0})
        self._file = file
        self._database = database
        self._vault = vault

    async def look(self) -> Used:
        """Measure what is used.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        pages = await self._database.read(_bytes_used)
        try:
            log, free = await asyncio.to_thread(self._look)
        except OSError as error:
            raise_for_client(error)
        self.used = Used(self._vault.bytes, pages, log, free)
        return self.used

    async def check(self, num_bytes: int = 0) -> None:
        """Look whether something new fits.

        Args:
            num_bytes: that it has, as far as is known.

        Raises:
            StoreFull: it does not.
            StoreUnavailable: the store cannot be read.
        """
        used = await self.look()
        if used.total + num_bytes > self.limit:
            self.refusals["bytes"] += 1
            raise StoreFull(
                f"the store has {used.total} bytes of the {self.limit} that it may take, [store] "
                "bytes: delete files or responses that are not needed, or ask the operator for more"
            )
        if used.free - num_bytes < self.floor:
            self.refusals["free_bytes"] += 1
            raise StoreFull(
                f"the disk of the store has {used.free} bytes left, of which {self.floor} stay "
                "free, [store] free_bytes: delete files that are not needed, or ask the operator "
                "for room"
            )

    def _look(self) -> tuple[int, int]:
        disk = os.statvfs(self._file.parent)
        return size_of(self._file), disk.f_bavail * disk.f_frsize


def _bytes_used(connection: Connection) -> int:
    def pragma(name: str) -> int:
        return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())

    # What was deleted is free in the file, which does not shrink.
    return (pragma("page_count") - pragma("freelist_count")) * pragma("page_size")
