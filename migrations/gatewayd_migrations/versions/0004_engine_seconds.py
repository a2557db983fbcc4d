"""Engine time of requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; the engine time of existing rows is unknown."""
    column = sa.Column("engine_seconds", sa.Float(), server_default=sa.text("0"), nullable=False)
    op.add_column("usage", column)


def downgrade() -> None:
    """Drop the column."""
    op.execute("ALTER TABLE usage DROP COLUMN engine_seconds")
