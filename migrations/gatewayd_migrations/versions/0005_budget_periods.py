"""Budget periods, and the period in which each reservation was made."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; existing budgets have no period, so theirs begins at 0."""
    op.add_column("budgets", sa.Column("budget_period", sa.Text(), nullable=True))
    for table in ("budgets", "reservations"):
        begun = sa.Column("period_begin", sa.Integer(), server_default=sa.text("0"), nullable=False)
        op.add_column(table, begun)


def downgrade() -> None:
    """Drop the columns; usage of the present period becomes the total."""
    for table in ("reservations", "budgets"):
        op.execute(f"ALTER TABLE {table} DROP COLUMN period_begin")
    op.execute("ALTER TABLE budgets DROP COLUMN budget_period")
