"""Tables of the database; created by ``gatewayd_migrations``.

Times are Unix seconds. Ids start with the time, so that they sort by creation. API objects are
rows; parts of them that are never searched are JSON.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)

from gatewayd_migrations import NAMES

metadata = MetaData(naming_convention=NAMES)

DEFAULT_TENANT = "default"
"""Owner of all rows while there are no keys."""


def _tenant() -> Column[str]:
    """Column with the owner of a row."""
    return Column("tenant", Text, nullable=False, server_default=DEFAULT_TENANT, index=True)


files = Table(
    "files",
    metadata,
    Column("id", Text, primary_key=True),
    Column("created_at", Integer, nullable=False),
    Column("expires_at", Integer),
    Column("bytes", Integer, nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    _tenant(),
)

batches = Table(
    "batches",
    metadata,
    Column("id", Text, primary_key=True),
    Column("created_at", Integer, nullable=False),
    Column("endpoint", Text, nullable=False),
    # Not a foreign key: a file may be deleted once its batch has ended, which still names it.
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
    _tenant(),
    # Key whose rights its lines have; NULL for the operator.
    Column("key_id", Text),
)

batch_results = Table(
    "batch_results",
    metadata,
    Column("batch_id", ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    # From 1. Part of the primary key: a line cannot have two results.
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
    _tenant(),
)

tenants = Table(
    "tenants",
    metadata,
    Column("id", Text, primary_key=True),
    Column("created_at", Integer, nullable=False),
    # Names are never reused: usage stays with its tenant.
    Column("removed_at", Integer),
    Column("weight", Float, nullable=False, server_default=text("1")),
    Column("requests_per_minute", Integer),
    Column("tokens_per_minute", Integer),
    Column("concurrency", Integer),
    # Of the KV cache: pages as "128", or a share as "12.5%".
    Column("kv_floor", Text),
    Column("kv_ceiling", Text),
    # Of [store] bytes; NULL for its fair share.
    Column("store_bytes", Integer),
    # The most urgent class of service and the longest cache retention that it may request.
    Column("service_class", Text),
    Column("retention_priority", Integer),
    Column("retention_seconds", Integer),
)

# Stored bytes of each tenant, including an overhead for each row; maintained by triggers.
kept = Table(
    "kept",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("files", Integer, nullable=False, server_default=text("0")),
    Column("responses", Integer, nullable=False, server_default=text("0")),
    # Including their results, until these are in files.
    Column("batches", Integer, nullable=False, server_default=text("0")),
)

# Money is in whole millionths of the operator's currency.
budgets = Table(
    "budgets",
    metadata,
    Column("tenant", ForeignKey("tenants.id"), primary_key=True),
    Column("most_tokens", Integer),
    Column("most_micros", Integer),
    Column("used_tokens", Integer, nullable=False, server_default=text("0")),
    Column("used_micros", Integer, nullable=False, server_default=text("0")),
    Column("reserved_tokens", Integer, nullable=False, server_default=text("0")),
    Column("reserved_micros", Integer, nullable=False, server_default=text("0")),
    # "day" or "month", in UTC; and the begin of the period whose amounts are above.
    Column("budget_period", Text),
    Column("period_begin", Integer, nullable=False, server_default=text("0")),
    # Sum of the tags of its reservations, see tenants.reservation_seals.
    Column("reserved_tags", Integer),
)

keys = Table(
    "keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", ForeignKey("tenants.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    # The secret before the last rotation, and until when it is valid.
    Column("old_digest", LargeBinary),
    Column("old_until", Integer),
    Column("scopes", JSON, nullable=False),
    Column("created_at", Integer, nullable=False),
    Column("expires_at", Integer),
    Column("revoked_at", Integer),
)

prices = Table(
    "prices",
    metadata,
    Column("model", Text, primary_key=True),
    Column("input", Integer, nullable=False),
    Column("cached", Integer, nullable=False),
    Column("output", Integer, nullable=False),
)


def _of_a_request() -> list[Column[Any]]:
    """Columns that identify a request; never its content."""
    return [
        Column("request_id", Text, nullable=False),
        Column("tenant", Text, nullable=False),
        Column("key_id", Text),
        Column("endpoint", Text, nullable=False),
        Column("model", Text, nullable=False),
        Column("created_at", Integer, nullable=False),
        Column("prompt_tokens", Integer, nullable=False),
    ]


reservations = Table(
    "reservations",
    metadata,
    Column("id", Text, primary_key=True),
    *_of_a_request(),
    Column("tokens", Integer, nullable=False),
    Column("micros", Integer, nullable=False),
    # Prices at which it is settled, whatever the prices are then.
    Column("input_price", Integer, nullable=False),
    Column("cached_price", Integer, nullable=False),
    Column("output_price", Integer, nullable=False),
    # Begin of the budget period that it was reserved in.
    Column("period_begin", Integer, nullable=False, server_default=text("0")),
    # See tenants.reservation_seals.
    Column("seal", LargeBinary),
)

usage = Table(
    "usage",
    metadata,
    Column("id", Text, primary_key=True),
    *_of_a_request(),
    Column("cached_tokens", Integer, nullable=False),
    Column("completion_tokens", Integer, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("micros", Integer, nullable=False),
    Column("queue_ms", Integer),
    Column("first_ms", Integer),
    Column("total_ms", Integer, nullable=False),
    # By its share of the tokens of each step.
    Column("engine_seconds", Float, nullable=False, server_default=text("0")),
    # More than one in rows that aggregate an hour.
    Column("requests", Integer, nullable=False, server_default=text("1")),
    Index(None, "tenant", "created_at"),
    Index(None, "created_at"),
)

audit = Table(
    "audit",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("at", Integer, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("mac", Text, nullable=False),
)

# MACs of rows of tenants, keys, prices and budgets, see tenants.seals.
seals = Table(
    "seals",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    # Number of the change that wrote the row.
    Column("version", Integer, nullable=False),
    Column("mac", Text, nullable=False),
)

# A single row: number of the last change, sums of versions by table, head of the audit.
seal_state = Table(
    "seal_state",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("changes", Integer, nullable=False),
    Column("totals", Text, nullable=False),
    Column("audit_seq", Integer, nullable=False),
    Column("audit_mac", Text, nullable=False),
    Column("mac", Text, nullable=False),
)

overrides = Table(
    "overrides",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("at", Integer, nullable=False),
    Column("actor", Text, nullable=False),
    Column("section", Text, nullable=False, index=True),
    Column("value", Text, nullable=False),
    Column("base", Text, nullable=False),
)


def _explained(name: str) -> Table:
    """Table of request timelines: ids, token counts and times, but no content."""
    return Table(
        name,
        metadata,
        Column("number", Integer, primary_key=True),
        Column("request_id", Text, nullable=False, index=True),
        Column("answered_id", Text, nullable=False, index=True),
        Column("unix", Integer, nullable=False, index=True),
        Column("explanation", LargeBinary, nullable=False),
    )


ledgers = _explained("ledgers")
refusals = _explained("refusals")
