"""Schema upgrades of the database by migrations."""

from __future__ import annotations

import logging
from pathlib import Path

from sqlalchemy import Connection, Engine

from gatewayd.store.errors import StoreError, reason_of
from gatewayd_migrations import HEAD

_log = logging.getLogger(__name__)


def revision_of(connection: Connection) -> str | None:
    """The schema revision of a database; None for an empty one."""
    found = connection.exec_driver_sql(
        "SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'"
    ).scalar_one()
    if not found:
        return None
    row = connection.exec_driver_sql("SELECT version_num FROM alembic_version").one_or_none()
    return None if row is None else str(row[0])


def upgrade_schema(engine: Engine, file: Path) -> None:
    """Upgrade a database to the present schema, in one transaction.

    Raises:
        StoreError: it is newer than this program, damaged, or cannot be written.
    """
    try:
        # The transaction takes the write lock at once, and SQLite rolls back DDL as well.
        with engine.begin() as connection:
            revision = revision_of(connection)
            if revision == HEAD:
                return
            # Imported late: Alembic would take a fifth of a second of each start.
            from gatewayd_migrations import steps

            if revision is not None and revision not in steps.revisions():
                raise StoreError(
                    f"the store {file} has the schema {revision}, which is newer than this "
                    f"gatewayd, whose newest is {HEAD}: use the gatewayd that wrote it, or a copy "
                    "of the store from before"
                )
            steps.upgrade(connection)
    except StoreError:
        raise
    except Exception as error:
        raise StoreError(f"the store {file} cannot be used: {reason_of(error) or error}") from error
    _log.info("store %s upgraded to schema %s", file, HEAD)
