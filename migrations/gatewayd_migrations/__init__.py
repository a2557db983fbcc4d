"""The store's schema, revision by revision: Alembic's environment, run without its command line."""

from __future__ import annotations

HEAD = "0011"
"""The newest revision; kept here so that a daemon whose store has it does not import Alembic."""

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
"""Names of constraints: SQLite's batch mode can change only what has one."""
