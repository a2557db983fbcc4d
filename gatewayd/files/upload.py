"""A file on its way in: from the form to the vault, then to its row."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from gatewayd.errors import GatewayError, InvalidRequest
from gatewayd.files import records
from gatewayd.files.records import FileRow
from gatewayd.files.vault import Draft, Vault
from gatewayd.http.asgi import Receive, Scope
from gatewayd.http.form import Form, receive_form
from gatewayd.store.database import Database
from gatewayd.store.faults import raise_for_client
from gatewayd.store.ids import new_id

PURPOSES = ("batch", "user_data")
LEAST_SECONDS, MOST_SECONDS = 3600, 30 * 86_400


class _Into:
    """Writes a draft in threads."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    async def write(self, data: bytes) -> None:
        if data:
            await asyncio.to_thread(self._draft.write, data)


async def receive_file(
    scope: Scope, receive: Receive, vault: Vault, database: Database, limit: int
) -> tuple[FileRow, list[str]]:
    """Take a file in.

    Returns:
        Its row, once content and row are on the disk; and names of fields nobody knows.

    Raises:
        GatewayError: it is refused, or there is no room.
        ClientGone: it did not come to its end.
    """
    try:
        draft = await asyncio.to_thread(vault.draft)
        try:
            form = await receive_form(scope, receive, _Into(draft), limit)
            row = _row(form, draft.size)
            # The row last: a content without one is forgotten at the next start.
            await asyncio.to_thread(draft.keep, row.id)
        finally:
            await asyncio.to_thread(draft.drop)
    except OSError as error:
        raise_for_client(error)
    try:
        await database.write(lambda connection: records.add(connection, row))
    except GatewayError:
        await asyncio.to_thread(vault.remove, [row.id])
        raise
    known = {"purpose", "expires_after[anchor]", "expires_after[seconds]"}
    return row, [name for name in form.fields if name not in known]


def expiry(anchor: object, seconds: object, param: str) -> int | None:
    """Seconds after which a file is deleted; None for never.

    Raises:
        InvalidRequest: the anchor or the seconds are wrong.
    """
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidRequest(
            f"{param}.anchor is {str(anchor)[:64]!r}; it must be created_at", param=param
        )
    text = str(seconds)
    if not (text.isascii() and text.isdigit() and LEAST_SECONDS <= int(text[:12]) <= MOST_SECONDS):
        raise InvalidRequest(
            f"{param}.seconds is {text[:32]!r}; it must be from {LEAST_SECONDS} to {MOST_SECONDS}",
            param=param,
        )
    return int(text)


def _row(form: Form, size: int) -> FileRow:
    fields: Mapping[str, str] = form.fields
    purpose = fields.get("purpose")
    if purpose is None:
        raise InvalidRequest(
            "purpose is required", param="purpose", code="missing_required_parameter"
        )
    if purpose not in PURPOSES:
        raise InvalidRequest(
            f"purpose is {purpose[:64]!r}; it must be one of {', '.join(PURPOSES)}",
            param="purpose",
        )
    seconds = expiry(
        fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]"), "expires_after"
    )
    now = int(time.time())
    return FileRow(
        id=new_id("file-"),
        created_at=now,
        expires_at=None if seconds is None else now + seconds,
        bytes=size,
        filename=form.filename or "upload",
        purpose=purpose,
    )
