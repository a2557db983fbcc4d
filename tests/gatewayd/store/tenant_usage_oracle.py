"""Oracle of tenants' stored bytes: from rows and disk alone, no SQL function or trigger."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path

from gatewayd.store.tenant_shares import BATCH_BYTES, FILE_BYTES, RESPONSE_BYTES, RESULT_BYTES

Sums = dict[str, tuple[int, int, int]]


def counted(folder: Path) -> Sums:
    """By the triggers: bytes of files, responses and batches; without tenants that keep nothing."""
    with sqlite3.connect(folder / "gatewayd.db") as raw:
        rows = raw.execute("SELECT tenant, files, responses, batches FROM kept").fetchall()
    return {tenant: tuple(sums) for tenant, *sums in rows if any(sums)}


def recounted(folder: Path, *, has_contents: bool = True) -> Sums:
    """The same, from what is there.

    Args:
        folder: of the store.
        has_contents: whether rows of files have contents.
    """
    files, responses, batches = (Counter[str]() for _ in range(3))
    with sqlite3.connect(folder / "gatewayd.db") as raw:
        raw.text_factory = bytes
        for file_id, size, name, tenant in raw.execute(
            "SELECT id, bytes, filename, tenant FROM files"
        ):
            content = folder / "files" / file_id.decode()
            on_disk = content.stat().st_size if has_contents else size
            files[tenant.decode()] += on_disk + len(name) + FILE_BYTES
        for body, given, tenant in raw.execute("SELECT body, input, tenant FROM responses"):
            responses[tenant.decode()] += len(body) + len(given) + RESPONSE_BYTES
        owners: dict[bytes, str] = {}
        for batch_id, tenant, *told in raw.execute(
            "SELECT id, tenant, metadata, errors, usage FROM batches"
        ):
            owners[batch_id] = tenant.decode()
            batches[tenant.decode()] += BATCH_BYTES + sum(len(one or b"") for one in told)
        for batch_id, output in raw.execute("SELECT batch_id, output FROM batch_results"):
            batches[owners[batch_id]] += len(output) + RESULT_BYTES
    names = files.keys() | responses.keys() | batches.keys()
    return {name: (files[name], responses[name], batches[name]) for name in names}
