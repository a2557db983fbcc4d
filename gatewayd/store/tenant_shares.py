"""Stored bytes of each tenant, and its limit.

A tenant has the limit that the operator has set, or a fair share: half of the store is divided
equally between all tenants and one potential new one, the other half is first come, first served.
So a tenant is refused only if it uses its own part and what is left is reserved for others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from sqlalchemy import Connection, func, select

from gatewayd.store.tables import batches, files, kept

FILE_BYTES, RESPONSE_BYTES, BATCH_BYTES, RESULT_BYTES = 4096, 512, 1024, 256
"""Overhead of each object in addition to its content, as counted by triggers."""
# Later statuses run no more lines: their results are already counted by rows.
_OPEN = ("validating", "in_progress")
_STANDING = """
SELECT coalesce(mine.files, 0), coalesce(mine.responses, 0), coalesce(mine.batches, 0),
    (SELECT store_bytes FROM tenants WHERE id = :tenant),
    part,
    (SELECT coalesce(sum(max(
        0,
        min(part, coalesce(others.store_bytes, part))
        - coalesce(theirs.files + theirs.responses + theirs.batches, 0)
    )), 0)
    FROM tenants AS others LEFT JOIN kept AS theirs ON theirs.tenant = others.id
    WHERE others.removed_at IS NULL AND others.id != :tenant)
FROM (
    SELECT :limit / (2 * (count(*) + 1)) AS part FROM tenants WHERE removed_at IS NULL
) LEFT JOIN kept AS mine ON mine.tenant = :tenant
"""
"""As text: it runs for each piece of an upload, and building it would cost more."""


class Owner(Protocol):
    """Owner of stored data."""

    @property
    def tenant(self) -> str:
        """The owning tenant."""

    @property
    def key_id(self) -> str | None:
        """The tenant's key; None for the operator, whose share is all that is left."""


class StoredBytes(NamedTuple):
    """Stored bytes of a tenant.

    Attributes:
        files: contents and their rows.
        responses: responses with their inputs.
        batches: batches with results that are not in files yet.
    """

    files: int = 0
    responses: int = 0
    batches: int = 0

    @property
    def total(self) -> int:
        """Sum of all kinds."""
        return sum(self)


class TenantStanding(NamedTuple):
    """Quota figures of one tenant.

    Attributes:
        kept: its stored bytes.
        most: limit set by the operator; None for its fair share.
        part: its guaranteed part, equal for all tenants.
        promised: guaranteed parts of other tenants that they do not use.
    """

    kept: StoredBytes
    most: int | None
    part: int
    promised: int

    def may_keep(self, has: int, left: int) -> int:
        """Maximum bytes that it may store now.

        Args:
            has: its bytes, including incoming ones.
            left: bytes left in the store.
        """
        if self.most is not None:
            return self.most
        # Its guaranteed part in any case; beyond that whatever others are not guaranteed.
        return max(self.part, has + max(0, left - self.promised))


def read_standing(connection: Connection, tenant: str, limit: int) -> TenantStanding:
    """Read the quota figures of a tenant.

    Args:
        connection: to read with.
        tenant: the tenant.
        limit: maximum bytes of the store.
    """
    asked = {"tenant": tenant, "limit": limit}
    *sums, most, part, unused = connection.exec_driver_sql(_STANDING, asked).one()
    # The part of a tenant that may come is unused as well.
    return TenantStanding(StoredBytes(*sums), most, part, unused + part)


def expected_of(connection: Connection, tenant: str) -> int:
    """Estimated bytes of the results of a tenant's open batches: the size of their inputs."""
    inputs = files.join(batches, batches.c.input_file_id == files.c.id)
    query = select(func.coalesce(func.sum(files.c.bytes), 0)).select_from(inputs)
    expected: int = connection.execute(
        query.where(batches.c.tenant == tenant, batches.c.status.in_(_OPEN))
    ).scalar_one()
    return expected


def stored_bytes_by_tenant(connection: Connection) -> dict[str, StoredBytes]:
    """Stored bytes of all tenants that ever stored anything."""
    return {row.tenant: StoredBytes(*row[1:]) for row in connection.execute(select(kept))}


class UnrecordedBytes(NamedTuple):
    """Bytes that may be missing from the rows that were read.

    Attributes:
        num_bytes: bytes of one tenant.
        num_unseen: bytes of all tenants that are not on the disk either.
    """

    num_bytes: int
    num_unseen: int


class IncomingBytes:
    """Counter of incoming bytes, which no row includes yet.

    Attributes:
        num_unseen: those of them that are not on the disk either.
    """

    def __init__(self) -> None:
        self.num_unseen = 0
        self._bytes: Counter[str] = Counter()
        # Totals since the start, which only increase.
        self._given_back: Counter[str] = Counter()
        self._unseen_given_back = 0

    def of(self, tenant: str) -> int:
        """Incoming bytes of a tenant."""
        return self._bytes[tenant]

    def start_sum(self, tenant: str) -> Callable[[], UnrecordedBytes]:
        """Start to sum up a tenant's bytes, before its rows are read.

        Returns:
            A function to call after the read: bytes that are incoming, or were released meanwhile.
        """
        # Bytes given back from here on may be in the rows that are read, or not: `transit` adds
        # them, so that they count twice rather than never.
        returned, unseen = self._given_back[tenant], self._unseen_given_back

        def transit() -> UnrecordedBytes:
            return UnrecordedBytes(
                self._bytes[tenant] + self._given_back[tenant] - returned,
                self.num_unseen + self._unseen_given_back - unseen,
            )

        return transit

    @contextmanager
    def counted(self, tenant: str) -> Iterator[TenantShare]:
        """Count the incoming bytes of a request until the block ends; then a row counts them."""
        hold = TenantShare(self, tenant)
        try:
            yield hold
        finally:
            hold.release()

    def release(self, tenant: str, num_bytes: int, num_unseen: int) -> None:
        """Release bytes that rows include now, or that were discarded."""
        self.change(tenant, -num_bytes, -num_unseen)
        # Nothing was counted, so there is nothing unseen either.
        if num_bytes:
            self._given_back[tenant] += num_bytes
            self._unseen_given_back += num_unseen

    def change(self, tenant: str, num_bytes: int, num_unseen: int) -> None:
        """Add to the counts; negative numbers subtract."""
        self.num_unseen += num_unseen
        self._bytes[tenant] += num_bytes
        if not self._bytes[tenant]:
            del self._bytes[tenant]


class TenantShare:
    """Incoming bytes of one request.

    Do not await between a quota check and ``add``: two requests might both fit.
    """

    def __init__(self, coming: IncomingBytes, tenant: str) -> None:
        self._coming = coming
        self._tenant = tenant
        self._num_bytes = self._num_unseen = 0

    def add(self, num_bytes: int) -> None:
        """Add incoming bytes."""
        self._change(num_bytes, num_bytes)

    def mark_written(self, num_bytes: int) -> None:
        """Move bytes to those on the disk, where measurements include them."""
        self._change(0, -num_bytes)

    def release(self) -> None:
        """Release all bytes: a row includes them, or they were discarded."""
        self._coming.release(self._tenant, self._num_bytes, self._num_unseen)
        self._num_bytes = self._num_unseen = 0

    def _change(self, num_bytes: int, num_unseen: int) -> None:
        self._num_bytes += num_bytes
        self._num_unseen += num_unseen
        self._coming.change(self._tenant, num_bytes, num_unseen)
