"""Runtime changes of the configuration by operators."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "overrides",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("at", sa.Integer(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("section", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("base", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_overrides"),
    )
    op.create_index("ix_overrides_section", "overrides", ["section"])


def downgrade() -> None:
    """Drop the table: the configuration file applies."""
    op.drop_table("overrides")
