"""What each tenant keeps in the store, and how much it may.

A tenant has the limit that the operator gave it, or a fair share: half of the store is promised in
equal parts to all tenants and to one that may come, the other half is for whoever needs it. So a
tenant is refused only if it keeps its own part already and what is left is promised to others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from sqlalchemy import Connection, func, select

from gatewayd.store.tables import batches, files, kept

FILE_BYTES, RESPONSE_BYTES, BATCH_BYTES, RESULT_BYTES = 4096, 512, 1024, 256
"""That each takes beside its content, as the triggers count it: many small ones are not free."""
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
"""Written out: it is asked for each piece of an upload, and building it would cost more."""


class Owner(Protocol):
    """Who keeps something."""

    @property
    def tenant(self) -> str:
        """Whose it is."""

    @property
    def key_id(self) -> str | None:
        """Of the tenant's key; None for the operator, whose share is all that is left."""


class StoredBytes(NamedTuple):
    """Bytes that a tenant keeps in the store.

    Attributes:
        files: contents and their rows.
        responses: with their inputs.
        batches: with results that are not in files yet.
    """

    files: int = 0
    responses: int = 0
    batches: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


class TenantStanding(NamedTuple):
    """Of one tenant beside the others.

    Attributes:
        kept: what it has.
        most: that the operator set for it; None for its fair share.
        part: that is promised to it as to everybody.
        promised: what is promised to others, and they do not use.
    """

    kept: StoredBytes
    most: int | None
    part: int
    promised: int

    def may_keep(self, has: int, left: int) -> int:
        """Bytes that it may keep now.

        Args:
            has: that it keeps, what is coming too.
            left: of the store.
        """
        if self.most is not None:
            return self.most
        return max(self.part, has + max(0, left - self.promised))


def standing_of(connection: Connection, tenant: str, limit: int) -> TenantStanding:
    """Look.

    Args:
        connection: to read with.
        tenant: whose.
        limit: bytes of the store.
    """
    asked = {"tenant": tenant, "limit": limit}
    *sums, most, part, unused = connection.exec_driver_sql(_STANDING, asked).one()
    return TenantStanding(StoredBytes(*sums), most, part, unused + part)


def expected_of(connection: Connection, tenant: str) -> int:
    """Bytes that results of a tenant's open batches may take: as many as their inputs."""
    inputs = files.join(batches, batches.c.input_file_id == files.c.id)
    query = select(func.coalesce(func.sum(files.c.bytes), 0)).select_from(inputs)
    expected: int = connection.execute(
        query.where(batches.c.tenant == tenant, batches.c.status.in_(_OPEN))
    ).scalar_one()
    return expected


def all_kept(connection: Connection) -> dict[str, StoredBytes]:
    """Of every tenant that ever kept anything."""
    return {row.tenant: StoredBytes(*row[1:]) for row in connection.execute(select(kept))}


class Transit(NamedTuple):
    """Bytes that the rows that were read may not include.

    Attributes:
        num_bytes: of one tenant.
        num_unseen: of all tenants, those not on the disk either.
    """

    num_bytes: int
    num_unseen: int


class Coming:
    """Bytes that are on their way in, which no row counts yet.

    Attributes:
        num_unseen: of those that are not on the disk either.
    """

    def __init__(self) -> None:
        self.num_unseen = 0
        self._bytes: Counter[str] = Counter()
        # Totals since the start, which only grow.
        self._given_back: Counter[str] = Counter()
        self._unseen_given_back = 0

    def of(self, tenant: str) -> int:
        """Of one tenant."""
        return self._bytes[tenant]

    def look(self, tenant: str) -> Callable[[], Transit]:
        """Begin to sum up a tenant's bytes; call it before its rows are read.

        Returns:
            A function for after the read: what is coming, and what was given back meanwhile.
        """
        returned, unseen = self._given_back[tenant], self._unseen_given_back

        def tell() -> Transit:
            return Transit(
                self._bytes[tenant] + self._given_back[tenant] - returned,
                self.num_unseen + self._unseen_given_back - unseen,
            )

        return tell

    @contextmanager
    def counted(self, tenant: str) -> Iterator[TenantShare]:
        """Count what comes of one request until the block ends, when a row does."""
        hold = TenantShare(self, tenant)
        try:
            yield hold
        finally:
            hold.give_back()

    def give_back(self, tenant: str, num_bytes: int, num_unseen: int) -> None:
        """They are in rows now, or dropped."""
        self.change(tenant, -num_bytes, -num_unseen)
        if num_bytes:
            self._given_back[tenant] += num_bytes
            self._unseen_given_back += num_unseen

    def change(self, tenant: str, num_bytes: int, num_unseen: int) -> None:
        """Count more, or with a minus less."""
        self.num_unseen += num_unseen
        self._bytes[tenant] += num_bytes
        if not self._bytes[tenant]:
            del self._bytes[tenant]


class TenantShare:
    """What comes of one request.

    Between a check of the room and ``add`` nothing may be awaited: two requests would both fit.
    """

    def __init__(self, coming: Coming, tenant: str) -> None:
        self._coming = coming
        self._tenant = tenant
        self._num_bytes = self._num_unseen = 0

    def add(self, num_bytes: int) -> None:
        """So many more come."""
        self._change(num_bytes, num_bytes)

    def land(self, num_bytes: int) -> None:
        """So many of them are on the disk, where they are seen."""
        self._change(0, -num_bytes)

    def give_back(self) -> None:
        """A row counts them, or they are gone."""
        self._coming.give_back(self._tenant, self._num_bytes, self._num_unseen)
        self._num_bytes = self._num_unseen = 0

    def _change(self, num_bytes: int, num_unseen: int) -> None:
        self._num_bytes += num_bytes
        self._num_unseen += num_unseen
        self._coming.change(self._tenant, num_bytes, num_unseen)
