"""Tenants with keys, budgets and usage, prices, the audit chain; owners of existing rows."""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_OWNED = ("files", "batches", "responses")
_DEFAULT = "default"
"""The tenant of requests without a key, which owns existing rows."""


def upgrade() -> None:
    """Create the tables; existing rows belong to the default tenant."""
    tenants = op.create_table(
        "tenants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Integer(), nullable=False),
        sa.Column("removed_at", sa.Integer(), nullable=True),
        sa.Column("weight", sa.Float(), server_default=sa.text("1"), nullable=False),
        sa.Column("requests_per_minute", sa.Integer(), nullable=True),
        sa.Column("tokens_per_minute", sa.Integer(), nullable=True),
        sa.Column("concurrency", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
    )
    budgets = op.create_table(
        "budgets",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("most_tokens", sa.Integer(), nullable=True),
        sa.Column("most_micros", sa.Integer(), nullable=True),
        *[
            sa.Column(name, sa.Integer(), server_default=sa.text("0"), nullable=False)
            for name in ("used_tokens", "used_micros", "reserved_tokens", "reserved_micros")
        ],
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], name=op.f("fk_budgets_tenant_tenants")),
        sa.PrimaryKeyConstraint("tenant", name=op.f("pk_budgets")),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("old_digest", sa.LargeBinary(), nullable=True),
        sa.Column("old_until", sa.Integer(), nullable=True),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Integer(), nullable=False),
        sa.Column("expires_at", sa.Integer(), nullable=True),
        sa.Column("revoked_at", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], name=op.f("fk_keys_tenant_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
    )
    op.create_table(
        "prices",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("input", sa.Integer(), nullable=False),
        sa.Column("cached", sa.Integer(), nullable=False),
        sa.Column("output", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("model", name=op.f("pk_prices")),
    )
    op.create_table(
        "reservations",
        sa.Column("id", sa.Text(), nullable=False),
        *_of_a_request(),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("micros", sa.Integer(), nullable=False),
        sa.Column("input_price", sa.Integer(), nullable=False),
        sa.Column("cached_price", sa.Integer(), nullable=False),
        sa.Column("output_price", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservations")),
    )
    op.create_table(
        "usage",
        sa.Column("id", sa.Text(), nullable=False),
        *_of_a_request(),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("micros", sa.Integer(), nullable=False),
        sa.Column("queue_ms", sa.Integer(), nullable=True),
        sa.Column("first_ms", sa.Integer(), nullable=True),
        sa.Column("total_ms", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage")),
    )
    op.create_index(op.f("ix_usage_tenant_created_at"), "usage", ["tenant", "created_at"])
    op.create_index(op.f("ix_usage_created_at"), "usage", ["created_at"])
    op.create_table(
        "audit",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("at", sa.Integer(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("mac", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_audit")),
    )
    op.bulk_insert(tenants, [{"id": _DEFAULT, "created_at": int(time.time())}])
    op.bulk_insert(budgets, [{"tenant": _DEFAULT}])
    for table in _OWNED:
        # Added in place: recreating the table would delete results of batches, which reference it.
        owner = sa.Column("tenant", sa.Text(), server_default=_DEFAULT, nullable=False)
        op.add_column(table, owner)
        op.create_index(op.f(f"ix_{table}_tenant"), table, ["tenant"])
    op.add_column("batches", sa.Column("key_id", sa.Text(), nullable=True))


def _of_a_request() -> list[sa.Column[object]]:
    return [
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=True),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
    ]


def downgrade() -> None:
    """Drop the tables and the owners of rows."""
    op.execute("ALTER TABLE batches DROP COLUMN key_id")
    for table in _OWNED:
        op.drop_index(op.f(f"ix_{table}_tenant"), table)
        # In place: Alembic would recreate the table, which would delete results of batches.
        op.execute(f"ALTER TABLE {table} DROP COLUMN tenant")
    # `tenants` last: `keys` and `budgets` reference it.
    for table in ("audit", "usage", "reservations", "prices", "keys", "budgets", "tenants"):
        op.drop_table(table)
