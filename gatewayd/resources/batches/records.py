"""Rows of batches: status, and one result for each line.

Each status change is one transaction; so is a result together with the count of results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, delete, exists, func, insert, select, update
from sqlalchemy.dialects import sqlite

from gatewayd.errors import Conflict, NotFound
from gatewayd.resources.batches.line_set import LineSet
from gatewayd.resources.files.records import OVER
from gatewayd.store.paging import Page, paged
from gatewayd.store.tables import batch_results, batches

NEXT = {
    "validating": ("in_progress", "failed", "cancelling"),
    "in_progress": ("finalizing", "failed", "cancelling"),
    "finalizing": ("completed", "expired", "failed"),
    "cancelling": ("cancelled", "failed"),
}
"""Valid transitions: for each status, those that may follow."""

_FORGOTTEN_AT_ONCE = 128
"""Results per transaction, each up to some megabytes: no other writer can proceed meanwhile."""

BatchRow = Row[Any]


class LineResult(NamedTuple):
    """Result of a line; fields in the order of the table's columns.

    Attributes:
        batch_id: id of its batch.
        line: its line number.
        is_ok: whether the response had status 200.
        output: its line of the output or error file.
        input_tokens: tokens of its prompt.
        cached_tokens: of those, found in the prefix cache.
        output_tokens: generated tokens.
        reasoning_tokens: of those, tokens of the reasoning.
    """

    batch_id: str
    line: int
    is_ok: bool
    output: bytes
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


def add(connection: Connection, values: Mapping[str, Any]) -> BatchRow:
    """Add a batch, with the status ``validating``."""
    connection.execute(insert(batches).values(status="validating", **values))
    return find(connection, values["id"])


def find(connection: Connection, batch_id: str) -> BatchRow:
    """Return a batch, of any tenant.

    Raises:
        NotFound: there is no such batch.
    """
    return _one(connection, select(batches).where(batches.c.id == batch_id), batch_id)


def find_of(connection: Connection, tenant: str, batch_id: str) -> BatchRow:
    """Return a batch of a tenant.

    Raises:
        NotFound: the tenant has no such batch.
    """
    mine = select(batches).where(batches.c.id == batch_id, batches.c.tenant == tenant)
    return _one(connection, mine, batch_id)


def _one(connection: Connection, query: Select[Any], batch_id: str) -> BatchRow:
    found = connection.execute(query).one_or_none()
    if found is None:
        raise NotFound(f"there is no batch {batch_id[:128]!r}", param="batch_id")
    return found


def page(connection: Connection, tenant: str, page: Page) -> Sequence[BatchRow]:
    """A page of a tenant's batches, and one more row if more follow."""
    mine = select(batches).where(batches.c.tenant == tenant)
    return connection.execute(paged(mine, batches, page)).all()


def unfinished(connection: Connection) -> list[tuple[str, str]]:
    """Ids of unfinished batches, each with its tenant, oldest first."""
    query = select(batches.c.id, batches.c.tenant).where(batches.c.status.not_in(OVER))
    return [(row.id, row.tenant) for row in connection.execute(query.order_by(batches.c.id))]


def set_status(
    connection: Connection, batch_id: str, status: str, now: float, **values: object
) -> BatchRow:
    """Change the status of a batch.

    Raises:
        Conflict: the transition is not valid.
    """
    # Read in the transaction that writes: a cancellation and an end cannot both succeed.
    before = find(connection, batch_id).status
    if status not in NEXT.get(before, ()):
        raise Conflict(f"the batch {batch_id} is {before}; it cannot become {status}")
    fresh = {"status": status, f"{status}_at": int(now), **values}
    connection.execute(update(batches).where(batches.c.id == batch_id).values(fresh))
    return find(connection, batch_id)


def cancel(connection: Connection, tenant: str, batch_id: str, now: float) -> BatchRow:
    """Set a tenant's batch to ``cancelling``; idempotent.

    Raises:
        NotFound: the tenant has no such batch.
        Conflict: it has ended, or is finalizing.
    """
    row = find_of(connection, tenant, batch_id)
    return (
        row if row.status == "cancelling" else set_status(connection, batch_id, "cancelling", now)
    )


def record(connection: Connection, result: LineResult) -> bool:
    """Record the result of a line; only the first result of a line counts.

    Returns:
        Whether it was the first.
    """
    values = result._asdict()
    added = connection.execute(
        # Exactly once by the primary key, also if a line ran twice because the daemon died.
        sqlite.insert(batch_results).values(values).on_conflict_do_nothing()
    ).rowcount
    if added:
        count = batches.c.completed if result.is_ok else batches.c.failed
        connection.execute(
            update(batches).where(batches.c.id == result.batch_id).values({count: count + 1})
        )
    return bool(added)


def lines_done(connection: Connection, batch_id: str) -> LineSet:
    """Numbers of lines that have a result."""
    query = select(batch_results.c.line).where(batch_results.c.batch_id == batch_id)
    # Streamed: a large batch has tens of thousands of rows.
    return LineSet(connection.execute(query.execution_options(yield_per=1000)).scalars())


def outputs(connection: Connection, batch_id: str, *, is_ok: bool) -> Iterator[bytes]:
    """Iterate over results in the order of the input."""
    query = (
        select(batch_results.c.output)
        .where(batch_results.c.batch_id == batch_id, batch_results.c.is_ok.is_(is_ok))
        .order_by(batch_results.c.line)
    )
    yield from connection.execute(query.execution_options(yield_per=64)).scalars()


def usage(connection: Connection, batch_id: str) -> dict[str, Any]:
    """Total usage of a batch's results, in OpenAI's format."""
    table = batch_results.c
    names = (table.input_tokens, table.cached_tokens, table.output_tokens, table.reasoning_tokens)
    query = select(*[func.coalesce(func.sum(each), 0) for each in names])
    found = connection.execute(query.where(table.batch_id == batch_id)).one()
    prompt, cached, output, reasoning = found
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompt + output,
    }


def delete_some_results(connection: Connection, batch_id: str) -> bool:
    """Delete some results of a batch that has ended; return whether there may be more."""
    table = batch_results.c
    some = select(table.line).where(table.batch_id == batch_id).limit(_FORGOTTEN_AT_ONCE)
    mine = delete(batch_results).where(table.batch_id == batch_id, table.line.in_(some))
    return connection.execute(mine).rowcount == _FORGOTTEN_AT_ONCE


def with_leftover_results(connection: Connection) -> Sequence[str]:
    """Ids of batches that have ended and still have result rows, which are also in files."""
    has_some = exists().where(batch_results.c.batch_id == batches.c.id)
    query = select(batches.c.id).where(batches.c.status.in_(OVER), has_some)
    return connection.execute(query).scalars().all()


def remove_older(connection: Connection, ended_at: float, most: int) -> int:
    """Delete at most ``most`` batches that ended before a time; their files are kept.

    Returns:
        How many were deleted.
    """
    # Exactly one is set, that of the final status.
    ends = (batches.c[f"{status}_at"] for status in OVER)
    old = select(batches.c.id).where(
        # Ids start with the creation time, which bounds the scan.
        batches.c.id < f"batch_{max(0, int(ended_at * 1e9)):016x}",
        batches.c.status.in_(OVER),
        func.coalesce(*ends, batches.c.created_at) < ended_at,
    )
    query = delete(batches).where(batches.c.id.in_(old.limit(most)))
    return connection.execute(query).rowcount


def shown(row: BatchRow) -> dict[str, Any]:
    """Build OpenAI's batch object."""
    values = dict(row._mapping)
    counts = {name: values.pop(name) for name in ("total", "completed", "failed")}
    for name in ("output_seconds", "tenant", "key_id"):
        del values[name]
    errors = values.pop("errors")
    return {
        **values,
        "object": "batch",
        "request_counts": counts,
        "errors": None if errors is None else {"object": "list", "data": errors},
    }
