"""The tables, as the program sees them; ``gatewayd_migrations`` makes them.

Times are Unix seconds. Ids begin with the time, so that their order is that of creation. Objects of
the API are rows; their parts that nobody searches are JSON.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)

from gatewayd_migrations import NAMES

metadata = MetaData(naming_convention=NAMES)

files = Table(
    "files",
    metadata,
    Column("id", Text, primary_key=True),
    Column("created_at", Integer, nullable=False),
    Column("expires_at", Integer),
    Column("bytes", Integer, nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
)

batches = Table(
    "batches",
    metadata,
    Column("id", Text, primary_key=True),
    Column("created_at", Integer, nullable=False),
    Column("endpoint", Text, nullable=False),
    # No reference: a file may be deleted once its batch is over, and the batch still names it.
    Column("input_file_id", Text, nullable=False),
    Column("completion_window", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("expires_at", Integer, nullable=False),
    Column("in_progress_at", Integer),
    Column("finalizing_at", Integer),
    Column("completed_at", Integer),
    Column("failed_at", Integer),
    Column("expired_at", Integer),
    Column("cancelling_at", Integer),
    Column("cancelled_at", Integer),
    Column("output_file_id", Text),
    Column("error_file_id", Text),
    Column("output_seconds", Integer),
    Column("model", Text),
    Column("total", Integer, nullable=False, server_default=text("0")),
    Column("completed", Integer, nullable=False, server_default=text("0")),
    Column("failed", Integer, nullable=False, server_default=text("0")),
    Column("metadata", JSON(none_as_null=True)),
    Column("errors", JSON(none_as_null=True)),
    Column("usage", JSON(none_as_null=True)),
)

batch_results = Table(
    "batch_results",
    metadata,
    Column("batch_id", ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    # From 1. With the batch it is the key: a line cannot have two results.
    Column("line", Integer, primary_key=True),
    Column("is_ok", Boolean, nullable=False),
    Column("output", LargeBinary, nullable=False),
    Column("input_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("reasoning_tokens", Integer, nullable=False),
)

responses = Table(
    "responses",
    metadata,
    Column("id", Text, primary_key=True),
    Column("created_at", Integer, nullable=False, index=True),
    Column("status", Text, nullable=False),
    Column("previous_id", Text),
    Column("body", JSON, nullable=False),
    Column("input", JSON, nullable=False),
)
