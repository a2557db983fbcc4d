"""Rows of files: queries and updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, insert, select

from gatewayd.errors import Conflict, NotFound
from gatewayd.store.paging import Page, paged
from gatewayd.store.tables import DEFAULT_TENANT, batches, files

OVER = ("failed", "completed", "expired", "cancelled")
"""Statuses in which a batch does not need its input any more."""


class FileRow(NamedTuple):
    """A file; fields in the order of the table's columns.

    Attributes:
        id: ``file-...``.
        created_at: Unix time.
        expires_at: Unix time after which it is deleted, or None.
        bytes: size of its content.
        filename: name given by the client.
        purpose: ``batch``, ``user_data`` or ``batch_output``.
        tenant: its owner.
    """

    id: str
    created_at: int
    expires_at: int | None
    bytes: int
    filename: str
    purpose: str
    tenant: str = DEFAULT_TENANT

    def shown(self) -> dict[str, Any]:
        """Build OpenAI's file object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


def add(connection: Connection, row: FileRow) -> None:
    """Add a file whose content is complete."""
    connection.execute(insert(files).values(row._asdict()))


def find(connection: Connection, tenant: str, file_id: str, *, param: str = "file_id") -> FileRow:
    """Return a file of a tenant.

    Raises:
        NotFound: the tenant has no such file.
    """
    mine = select(files).where(files.c.id == file_id, files.c.tenant == tenant)
    found = connection.execute(mine).one_or_none()
    if found is None:
        raise NotFound(f"there is no file {file_id[:128]!r}", param=param)
    return FileRow(*found)


def size(connection: Connection, tenant: str, file_id: str) -> int:
    """Bytes of a tenant's file; 0 if there is no such file."""
    mine = select(files.c.bytes).where(files.c.id == file_id, files.c.tenant == tenant)
    return connection.execute(mine).scalar() or 0


def page(connection: Connection, tenant: str, page: Page, purpose: str | None) -> list[FileRow]:
    """A page of a tenant's files, and one more if more follow."""
    query = select(files).where(files.c.tenant == tenant)
    if purpose is not None:
        query = query.where(files.c.purpose == purpose)
    return [FileRow(*row) for row in connection.execute(paged(query, files, page))]


def ids(connection: Connection) -> set[str]:
    """Ids of all files."""
    return set(connection.execute(select(files.c.id)).scalars())


def remove(connection: Connection, tenant: str, file_id: str) -> None:
    """Delete the row of a tenant's file; its content is deleted afterwards.

    Raises:
        NotFound: the tenant has no such file.
        Conflict: an unfinished batch reads it.
    """
    find(connection, tenant, file_id)
    # In the same transaction as the deletion, so that no batch is created in between.
    users = select(batches.c.id).where(
        batches.c.input_file_id == file_id, batches.c.status.not_in(OVER)
    )
    if batch := connection.execute(users.limit(1)).scalar():
        raise Conflict(f"the batch {batch} reads this file; cancel it first", param="file_id")
    connection.execute(delete(files).where(files.c.id == file_id))


def remove_expired(connection: Connection, now: float, most: int) -> Sequence[str]:
    """Delete at most ``most`` expired files that no batch reads; return their ids."""
    users = select(batches.c.input_file_id).where(batches.c.status.not_in(OVER))
    over = select(files.c.id).where(files.c.expires_at <= now, files.c.id.not_in(users)).limit(most)
    query = delete(files).where(files.c.id.in_(over)).returning(files.c.id)
    return connection.execute(query).scalars().all()
