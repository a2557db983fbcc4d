"""Completion of a batch: writes results into files and records them in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sqlalchemy import Connection

from gatewayd.resources.batches import records
from gatewayd.resources.batches.line import output_line
from gatewayd.resources.batches.lines import all_lines
from gatewayd.resources.batches.records import BatchRow
from gatewayd.resources.files import records as file_records
from gatewayd.resources.files.content_store import ContentStore
from gatewayd.resources.files.records import FileRow
from gatewayd.store.errors import raise_for_client
from gatewayd.store.ids import new_id

_log = logging.getLogger(__name__)

_EXPIRED = {
    "code": "batch_expired",
    "message": "This request was not run before the batch's completion window ended.",
}


class BatchCompletion(NamedTuple):
    """Final state of a batch, to be recorded.

    Attributes:
        batch_id: id of the batch.
        status: its final status.
        output: file of successful responses; None without any.
        errors: file of failed requests; None without any.
        now: Unix time.
    """

    batch_id: str
    status: str
    output: FileRow | None
    errors: FileRow | None
    now: float

    def record(self, connection: Connection) -> BatchRow:
        """Record the files and the status; the files are visible to the client from then on."""
        # In the transaction of the status: a retry after a failure finds neither.
        for row in (self.output, self.errors):
            if row is not None:
                file_records.add(connection, row)
        usage = records.usage(connection, self.batch_id)
        return records.set_status(
            connection,
            self.batch_id,
            self.status,
            self.now,
            output_file_id=self.output and self.output.id,
            error_file_id=self.errors and self.errors.id,
            usage=usage,
        )


def write_files(
    connection: Connection, row: BatchRow, vault: ContentStore, now: float
) -> BatchCompletion:
    """Write results into files, in the order of the input. Blocks.

    Errors of lines that were not run before the batch expired follow those of lines that were.
    After a crash, contents without rows are deleted at the next start.

    Raises:
        StoreUnavailable: the files cannot be written; no part of them is left.
    """
    # Generators on an open cursor: results are written as they are read, never all in memory.
    failed: Iterator[bytes] = records.outputs(connection, row.id, is_ok=False)
    status = "cancelled" if row.status == "cancelling" else "completed"
    if status == "completed" and row.completed + row.failed < row.total:
        status = "expired"
        failed = _and_expired(failed, connection, row, vault)
    answered = records.outputs(connection, row.id, is_ok=True)
    output = None
    try:
        output = _write(vault, answered, row, "output", now)
        errors = _write(vault, failed, row, "error", now)
        return BatchCompletion(row.id, status, output, errors, now)
    except BaseException as error:
        # The end is retried with new files, so that these would never get a row.
        if output is not None:
            vault.remove([output.id])
        if isinstance(error, OSError):
            raise_for_client(error)
        raise


def _and_expired(
    failed: Iterator[bytes], connection: Connection, row: BatchRow, vault: ContentStore
) -> Iterator[bytes]:
    yield from failed
    done = records.lines_done(connection, row.id)
    try:
        for line in all_lines(vault.path(row.input_file_id), row.endpoint, row.total, done):
            yield output_line(line.custom_id, response=None, error=_EXPIRED)
    except OSError as error:  # responses are delivered all the same
        _log.error("cannot read the input of batch %s: %s", row.id, error.strerror)


def _write(
    vault: ContentStore, outputs: Iterable[bytes], row: BatchRow, what: str, now: float
) -> FileRow | None:
    draft = vault.draft()
    try:
        for output in outputs:
            draft.write(output)
        # As in OpenAI's API: a batch without such results has no such file.
        if not draft.size:
            return None
        file = FileRow(
            id=new_id("file-"),
            created_at=int(now),
            expires_at=None if row.output_seconds is None else int(now) + row.output_seconds,
            bytes=draft.size,
            filename=f"{row.id}_{what}.jsonl",
            purpose="batch_output",
            tenant=row.tenant,
        )
        draft.commit(file.id)
        return file
    finally:
        draft.discard()
