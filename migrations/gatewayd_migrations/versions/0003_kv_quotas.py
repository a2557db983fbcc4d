"""Floors and ceilings of tenants in the KV cache: pages as ``128``, shares as ``12.5%``."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_COLUMNS = ("kv_floor", "kv_ceiling")


def upgrade() -> None:
    """Add the columns; no tenant has any yet."""
    for name in _COLUMNS:
        op.add_column("tenants", sa.Column(name, sa.Text(), nullable=True))


def downgrade() -> None:
    """Drop the columns."""
    for name in _COLUMNS:
        # In place: Alembic would recreate the table, which other tables reference.
        op.execute(f"ALTER TABLE tenants DROP COLUMN {name}")
