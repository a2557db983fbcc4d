"""Timelines of refused requests, which no engine received."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "refusals",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("answered_id", sa.Text(), nullable=False),
        sa.Column("unix", sa.Integer(), nullable=False),
        sa.Column("explanation", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_refusals"),
    )
    for column in ("request_id", "answered_id", "unix"):
        op.create_index(f"ix_refusals_{column}", "refusals", [column])


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("refusals")
