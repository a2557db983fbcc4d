"""Seals of reservations, and in each budget the sum of the tags of its own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, empty: the daemon, which has the server's secret, seals existing rows once.

    Columns without a value change no seal of a budget.
    """
    op.add_column("reservations", sa.Column("seal", sa.LargeBinary(), nullable=True))
    op.add_column("budgets", sa.Column("reserved_tags", sa.Integer(), nullable=True))


def downgrade() -> None:
    """Drop the columns. Budgets have no tags while no request runs, so their seals stay valid."""
    op.execute("ALTER TABLE budgets DROP COLUMN reserved_tags")
    op.execute("ALTER TABLE reservations DROP COLUMN seal")
