"""Rights of tenants beyond the default, and their quotas in the store.

Stored bytes of each tenant are counted by triggers, within the transaction that changes them: the
sums match the rows, whichever program writes and however a transaction ends.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_COLUMNS: dict[str, sa.types.TypeEngine[Any]] = {
    "store_bytes": sa.Integer(),
    "service_class": sa.Text(),
    "retention_priority": sa.Integer(),
    "retention_seconds": sa.Integer(),
}

# Bytes of a row by its columns, with its overhead: a disk page for a file content, and entries in
# indexes. gatewayd/store/tenant_shares.py has the same numbers.
_FILE = "({0}.bytes + length(CAST({0}.filename AS BLOB)) + 4096)"
_RESPONSE = "(length(CAST({0}.body AS BLOB)) + length(CAST({0}.input AS BLOB)) + 512)"
_BATCH = (
    "(coalesce(length(CAST({0}.metadata AS BLOB)), 0) + coalesce(length(CAST({0}.errors AS BLOB)), "
    "0) + coalesce(length(CAST({0}.usage AS BLOB)), 0) + 1024)"
)
_RESULT = "(length({0}.output) + 256)"
_OWNER = "(SELECT tenant FROM batches WHERE id = {0}.batch_id)"

_COUNTED = (
    # Table, column of its sums, bytes of a row, its tenant, and the columns that may change.
    ("files", "files", _FILE, "{0}.tenant", "bytes, filename"),
    ("responses", "responses", _RESPONSE, "{0}.tenant", "body, input"),
    ("batches", "batches", _BATCH, "{0}.tenant", "metadata, errors, usage"),
    ("batch_results", "batches", _RESULT, _OWNER, "output"),
)


def upgrade() -> None:
    """Add the columns; existing tenants retain all rights that they had."""
    for name, kind in _COLUMNS.items():
        op.add_column("tenants", sa.Column(name, kind, nullable=True))
    op.execute(
        "UPDATE tenants SET service_class = 'realtime', retention_priority = 100, "
        "retention_seconds = 86400"
    )
    op.add_column(
        "usage", sa.Column("requests", sa.Integer(), nullable=False, server_default=sa.text("1"))
    )
    op.create_table(
        "kept",
        sa.Column("tenant", sa.Text(), nullable=False),
        *[
            sa.Column(name, sa.Integer(), nullable=False, server_default=sa.text("0"))
            for name in ("files", "responses", "batches")
        ],
        sa.PrimaryKeyConstraint("tenant", name="pk_kept"),
    )
    # Triggers first, then the sums of existing rows; both within one transaction.
    for table, column, size, owner, changing in _COUNTED:
        old, new = (size.format(which) for which in ("OLD", "NEW"))
        for event, amount, row in (
            ("INSERT", new, "NEW"),
            (f"UPDATE OF {changing}", f"{new} - {old}", "NEW"),
            ("DELETE", f"-{old}", "OLD"),
        ):
            op.execute(
                f"CREATE TRIGGER kept_{table}_{event.split()[0].lower()} AFTER {event} ON {table} "
                f"BEGIN INSERT INTO kept (tenant, {column}) "
                f"VALUES ({owner.format(row)}, {amount}) "
                f"ON CONFLICT (tenant) DO UPDATE SET {column} = {column} + excluded.{column}; END"
            )
        # An upsert from a SELECT needs a WHERE, or ON would be parsed as a join's.
        op.execute(
            f"INSERT INTO kept (tenant, {column}) SELECT {owner.format(table)}, "
            f"sum({size.format(table)}) FROM {table} WHERE true GROUP BY 1 "
            f"ON CONFLICT (tenant) DO UPDATE SET {column} = {column} + excluded.{column}"
        )
    # Before the batch is deleted: its results are counted for its tenant.
    op.execute(
        "CREATE TRIGGER kept_batches_results BEFORE DELETE ON batches "
        "BEGIN DELETE FROM batch_results WHERE batch_id = OLD.id; END"
    )


def downgrade() -> None:
    """Drop the triggers, the table and the columns."""
    # Triggers before the table that they write to.
    op.execute("DROP TRIGGER kept_batches_results")
    for table, *_ in _COUNTED:
        for event in ("insert", "update", "delete"):
            op.execute(f"DROP TRIGGER kept_{table}_{event}")
    op.drop_table("kept")
    op.execute("ALTER TABLE usage DROP COLUMN requests")
    for name in _COLUMNS:
        op.execute(f"ALTER TABLE tenants DROP COLUMN {name}")
