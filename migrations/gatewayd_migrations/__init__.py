"""Schema migrations of the store: Alembic's environment, run without its command line."""

from __future__ import annotations

HEAD = "0011"
"""The newest revision; repeated here so that an up-to-date store needs no import of Alembic."""

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
"""Naming convention of constraints: SQLite's batch mode can change only named ones."""
