"""Storage quotas: limits of each tenant, of the store, and of free disk space.

Accepted work is completed regardless: results of batches, background responses. Only batch lines
that have not started are refused if their tenant's quota is used up.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from sqlalchemy import Connection

from gatewayd.errors import StoreFull
from gatewayd.store.database import Database
from gatewayd.store.errors import raise_for_client
from gatewayd.store.tenant_shares import (
    IncomingBytes,
    Owner,
    StoredBytes,
    TenantStanding,
    expected_of,
    read_standing,
    stored_bytes_by_tenant,
)
from gatewayd.store.wal import size_of

ACCEPTED = "gatewayd.accepted"
"""ASGI extension of requests that were accepted before, such as lines of a batch."""


class Contents(Protocol):
    """Store of file contents beside the database."""

    @property
    def bytes(self) -> int:
        """Total bytes of all contents, including incomplete ones."""


class Used(NamedTuple):
    """Bytes used by the store.

    Attributes:
        files: contents, including incomplete ones.
        database: the database, without free pages.
        log: its write-ahead log.
        free: free bytes of its disk for this user.
    """

    files: int = 0
    database: int = 0
    log: int = 0
    free: int = 0

    @property
    def total(self) -> int:
        """Bytes of files, database and log."""
        return self.files + self.database + self.log


class _QuotaFigures(NamedTuple):
    """Figures for a decision.

    Attributes:
        owner: owner of the new data.
        kept: stored bytes of its tenant, by rows.
        has: bytes of its tenant, including incoming ones.
        may: maximum bytes of its tenant.
        total: bytes of the store, including incoming ones.
        free: free bytes of its disk.
        is_set: whether the operator has set the tenant's limit.
    """

    owner: Owner
    kept: StoredBytes
    has: int
    may: int
    total: int
    free: int
    is_set: bool


@dataclass(eq=False, repr=False)
class DiskQuota:
    """Decides whether new data fits.

    Attributes:
        limit: maximum bytes of the store.
        floor: bytes of its disk that must stay free.
        used: usage at the last measurement.
        kept: stored bytes by tenant, up to a minute old.
        coming: incoming data.
        refusals: number of refusals, by the setting that caused them.

    Args:
        file: file of the database.
        database: the open database.
        contents: store of file contents.
        limit: maximum bytes.
        floor: free bytes to keep.
    """

    _file: Path
    _database: Database
    _contents: Contents
    _: KW_ONLY
    limit: int
    floor: int
    used: Used = field(default_factory=Used)
    kept: Mapping[str, StoredBytes] = field(default_factory=dict)
    coming: IncomingBytes = field(default_factory=IncomingBytes)
    refusals: Counter[str] = field(
        default_factory=lambda: Counter({"bytes": 0, "free_bytes": 0, "store_bytes": 0})
    )

    async def measure(self) -> Used:
        """Measure the usage of the store and of each tenant.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        pages, self.kept = await self._database.read(
            lambda c: (_bytes_used(c), stored_bytes_by_tenant(c))
        )
        return await self._measured(pages)

    async def check(self, owner: Owner, num_bytes: int = 0) -> None:
        """Check that new data fits.

        Args:
            owner: its owner.
            num_bytes: its bytes, as far as known, in addition to those that are ``coming``.

        Raises:
            StoreFull: it does not fit.
            StoreUnavailable: the store cannot be read.
        """
        seen = await self._figures(owner)
        # The tenant's own limit comes first: its message names what that tenant can change.
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
        """Check that the results of one more batch fit, estimated by the size of its input.

        Args:
            owner: its owner.
            input_bytes: bytes of its input.

        Raises:
            StoreFull: they do not fit in addition to those of its tenant's open batches.
            StoreUnavailable: the store cannot be read.
        """
        # The results of open batches are not stored yet, so no row counts them.
        expected = await self._database.read(lambda c: expected_of(c, owner.tenant))
        self._check_tenant(await self._figures(owner), expected + input_bytes)

    async def check_line(self, owner: Owner) -> None:
        """Check that a tenant may store more results of a running batch.

        Raises:
            StoreFull: its quota is used up.
            StoreUnavailable: the store cannot be read.
        """
        # A byte: the size of a result is unknown before its line has run.
        self._check_tenant(await self._figures(owner), 1)

    async def usage_of(self, owner: Owner) -> dict[str, int]:
        """A tenant's stored bytes by kind and in total, and its present limit.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        seen = await self._figures(owner)
        return {**seen.kept._asdict(), "bytes": seen.has, "limit": seen.may}

    async def _figures(self, owner: Owner) -> _QuotaFigures:
        # Before the read: data that completes during it is in rows, in transit, or in both.
        transit_of_now = self.coming.start_sum(owner.tenant)
        standing, pages = await self._database.read(
            lambda c: (read_standing(c, owner.tenant, self.limit), _bytes_used(c))
        )
        used = await self._measured(pages)
        transit = transit_of_now()  # no await after this; see TenantShare
        has = standing.kept.total + transit.num_bytes
        total = used.total + transit.num_unseen
        may, is_set = _limit_of(owner, standing, has, self.limit - total)
        return _QuotaFigures(owner, standing.kept, has, may, total, used.free, is_set)

    def _check_tenant(self, seen: _QuotaFigures, num_bytes: int) -> None:
        if seen.has + num_bytes <= seen.may:
            return
        if seen.owner.key_id is None and not seen.is_set:
            return  # the operator's share is all that is left
        self.refusals["store_bytes"] += 1
        whose = "its store_bytes" if seen.is_set else "its fair share of [store] bytes"
        raise StoreFull(
            f"tenant {seen.owner.tenant} has {seen.has} bytes in the store, this may take "
            f"{num_bytes} more, and it may keep {seen.may}, {whose}: delete files or responses "
            "that are not needed, or ask the operator for more"
        )

    async def _measured(self, pages: int) -> Used:
        try:
            log, free = await asyncio.to_thread(self._measure_disk)
        except OSError as error:
            raise_for_client(error)
        self.used = Used(self._contents.bytes, pages, log, free)
        return self.used

    def _measure_disk(self) -> tuple[int, int]:
        disk = os.statvfs(self._file.parent)
        # `f_bavail`, not `f_bfree`: blocks reserved for root cannot be used.
        return size_of(self._file), disk.f_bavail * disk.f_frsize


def _limit_of(owner: Owner, standing: TenantStanding, has: int, left: int) -> tuple[int, bool]:
    """A tenant's limit, and whether the operator has set it."""
    if owner.key_id is None and standing.most is None:
        return has + max(0, left), False
    return standing.may_keep(has, left), standing.most is not None


def _bytes_used(connection: Connection) -> int:
    def pragma(name: str) -> int:
        return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())

    # Deleted data leaves free pages in the file, which does not shrink.
    return (pragma("page_count") - pragma("freelist_count")) * pragma("page_size")
