"""Seals of tenants, keys, prices and budgets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create empty tables: the daemon, which has the server's secret, seals existing rows once."""
    op.create_table(
        "seals",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("mac", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "id", name="pk_seals"),
    )
    op.create_table(
        "seal_state",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("changes", sa.Integer(), nullable=False),
        sa.Column("totals", sa.Text(), nullable=False),
        sa.Column("audit_seq", sa.Integer(), nullable=False),
        sa.Column("audit_mac", sa.Text(), nullable=False),
        sa.Column("mac", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_seal_state"),
    )


def downgrade() -> None:
    """Drop the tables. The audit records seals: after another upgrade they must be accepted."""
    op.drop_table("seal_state")
    op.drop_table("seals")
