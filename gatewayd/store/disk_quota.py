"""Whether the store takes anything new: of its tenant, in all, and with what must stay free.

What was taken on is finished whatever this says: results of batches, responses in the background.
Only lines of a batch that have not begun are refused where their tenant keeps all that it may.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from sqlalchemy import Connection

from gatewayd.errors import StoreFull
from gatewayd.store.database import Database
from gatewayd.store.errors import raise_for_client
from gatewayd.store.tenant_shares import (
    Coming,
    Owner,
    StoredBytes,
    TenantStanding,
    all_kept,
    expected_of,
    standing_of,
)
from gatewayd.store.wal import size_of

ACCEPTED = "gatewayd.accepted"
"""The extension of a scope whose request was taken on before, as a line of a batch."""


class Contents(Protocol):
    """Where contents of files are kept beside the database."""

    @property
    def bytes(self) -> int:
        """Of all contents, those that are being written too."""


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


class _Seen(NamedTuple):
    """What a decision is made of.

    Attributes:
        owner: whose it would be.
        kept: by its tenant, as rows count it.
        has: bytes of its tenant, what is coming too.
        may: bytes that its tenant may have.
        total: bytes that the store has, what is coming too.
        free: bytes that its disk has left.
        is_set: whether the operator has set the limit of the tenant.
    """

    owner: Owner
    kept: StoredBytes
    has: int
    may: int
    total: int
    free: int
    is_set: bool


class DiskQuota:
    """What may be taken in.

    Attributes:
        limit: bytes that the store may take.
        floor: bytes of its disk that must stay free.
        used: when last verified.
        kept: by each tenant, within the last minute.
        coming: what is on its way in.
        refusals: how many, by the setting at fault.

    Args:
        file: of the database.
        database: the same, open.
        contents: of files.
        limit: bytes.
        floor: bytes.
    """

    def __init__(
        self, file: Path, database: Database, contents: Contents, *, limit: int, floor: int
    ) -> None:
        self.limit = limit
        self.floor = floor
        self.used = Used()
        self.kept: Mapping[str, StoredBytes] = {}
        self.coming = Coming()
        self.refusals = Counter({"bytes": 0, "free_bytes": 0, "store_bytes": 0})
        self._file = file
        self._database = database
        self._contents = contents

    async def look(self) -> Used:
        """Measure what is used, and by whom.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        pages, self.kept = await self._database.read(lambda c: (_bytes_used(c), all_kept(c)))
        return await self._measured(pages)

    async def check(self, owner: Owner, num_bytes: int = 0) -> None:
        """Look whether something new fits.

        Args:
            owner: whose it would be.
            num_bytes: that it has, as far as is known, beside what is ``coming`` already.

        Raises:
            StoreFull: it does not.
            StoreUnavailable: the store cannot be read.
        """
        seen = await self._seen(owner)
        self._check_tenant(seen, num_bytes)
        if seen.total + num_bytes > self.limit:
            self.refusals["bytes"] += 1
            raise StoreFull(
                f"the store uses {seen.total} bytes of its limit of {self.limit}, [store] "
                "bytes: delete files or responses that are not needed, or ask the operator for more"
            )
        if seen.free - num_bytes < self.floor:
            self.refusals["free_bytes"] += 1
            raise StoreFull(
                f"the disk of the store has {seen.free} bytes left, and {self.floor} must stay "
                "free, [store] free_bytes: delete files that are not needed, or ask the operator "
                "for room"
            )

    async def check_batch(self, owner: Owner, input_bytes: int) -> None:
        """Look whether results of one more batch fit: they are taken to be as large as its input.

        Args:
            owner: whose it would be.
            input_bytes: of its input.

        Raises:
            StoreFull: they do not, beside those of its tenant's open batches.
            StoreUnavailable: the store cannot be read.
        """
        expected = await self._database.read(lambda c: expected_of(c, owner.tenant))
        self._check_tenant(await self._seen(owner), expected + input_bytes)

    async def check_line(self, owner: Owner) -> None:
        """Look whether a tenant may have more results of a batch that runs.

        Raises:
            StoreFull: it has all that it may have.
            StoreUnavailable: the store cannot be read.
        """
        self._check_tenant(await self._seen(owner), 1)

    async def standing(self, owner: Owner) -> dict[str, int]:
        """What a tenant is told: bytes of each kind, in all, and what it may have now.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        seen = await self._seen(owner)
        return {**seen.kept._asdict(), "bytes": seen.has, "limit": seen.may}

    async def _seen(self, owner: Owner) -> _Seen:
        # Before the read: what completes during it is in the rows, in transit, or in both.
        transit_of_now = self.coming.look(owner.tenant)
        standing, pages = await self._database.read(
            lambda c: (standing_of(c, owner.tenant, self.limit), _bytes_used(c))
        )
        used = await self._measured(pages)
        transit = transit_of_now()  # no await after this; see Hold
        has = standing.kept.total + transit.num_bytes
        total = used.total + transit.num_unseen
        may, is_set = _limit_of(owner, standing, has, self.limit - total)
        return _Seen(owner, standing.kept, has, may, total, used.free, is_set)

    def _check_tenant(self, seen: _Seen, num_bytes: int) -> None:
        if seen.has + num_bytes <= seen.may:
            return
        if seen.owner.key_id is None and not seen.is_set:
            return  # all that is left is the operator's
        self.refusals["store_bytes"] += 1
        whose = "its store_bytes" if seen.is_set else "its fair share of [store] bytes"
        raise StoreFull(
            f"tenant {seen.owner.tenant} keeps {seen.has} bytes in the store, this may take "
            f"{num_bytes} more, and it may keep {seen.may}, {whose}: delete files or responses "
            "that are not needed, or ask the operator for more"
        )

    async def _measured(self, pages: int) -> Used:
        try:
            log, free = await asyncio.to_thread(self._look)
        except OSError as error:
            raise_for_client(error)
        self.used = Used(self._contents.bytes, pages, log, free)
        return self.used

    def _look(self) -> tuple[int, int]:
        disk = os.statvfs(self._file.parent)
        return size_of(self._file), disk.f_bavail * disk.f_frsize


def _limit_of(owner: Owner, standing: TenantStanding, has: int, left: int) -> tuple[int, bool]:
    """What a tenant may have, and whether the operator has set it."""
    if owner.key_id is None and standing.most is None:
        return has + max(0, left), False
    return standing.may_keep(has, left), standing.most is not None


def _bytes_used(connection: Connection) -> int:
    def pragma(name: str) -> int:
        return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())

    # What was deleted is free in the file, which does not shrink.
    return (pragma("page_count") - pragma("freelist_count")) * pragma("page_size")
