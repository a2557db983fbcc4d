"""Alembic's environment, on a given connection within a transaction."""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=context.config.attributes.get("metadata"),
    # SQLite changes columns and constraints by recreating the table.
    render_as_batch=True,
    compare_type=True,
    # The caller's transaction: a failing revision undoes all of them.
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
