"""Upload of a file: from the multipart form to the content store, then to its row."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gatewayd.errors import GatewayError, InvalidRequest, StoreFull
from gatewayd.http.asgi import Receive, Scope
from gatewayd.http.form import MultipartForm, receive_form
from gatewayd.resources.files import records
from gatewayd.resources.files.content_store import Draft
from gatewayd.resources.files.context import FileContext
from gatewayd.resources.files.records import FileRow
from gatewayd.store.disk_quota import DiskQuota
from gatewayd.store.errors import raise_for_client
from gatewayd.store.ids import new_id
from gatewayd.store.tenant_shares import FILE_BYTES, Owner, TenantShare

PURPOSES = ("batch", "user_data")
LEAST_SECONDS, MOST_SECONDS = 3600, 30 * 86_400
_MOST_DIGITS = 12
"""Python converts only so many digits; more than these are out of bounds, or leading zeros."""


class _DraftSink:
    """Writes a draft in threads.

    An upload that exceeds the quota is read to its end, since most clients read no response before.

    Attributes:
        refusal: why writing has stopped.
    """

    def __init__(self, draft: Draft, room: DiskQuota, owner: Owner, hold: TenantShare) -> None:
        self._draft = draft
        self._room = room
        self._owner = owner
        self._hold = hold
        self.refusal: StoreFull | None = None

    async def write(self, data: bytes) -> None:
        if self.refusal is not None:
            return
        try:
            # Each piece is checked: the length of a chunked upload is unknown before its end.
            await self._room.check(self._owner, len(data) + FILE_BYTES)
        except StoreFull as refusal:
            self.refusal = refusal.with_traceback(None)  # the traceback would keep the data alive
            await asyncio.to_thread(self._draft.discard)
            self._hold.release()
        else:
            # Without an await after the check, and before the write: two uploads might both fit.
            self._hold.add(len(data))
            await asyncio.to_thread(self._draft.write, data)
            self._hold.mark_written(len(data))


async def receive_file(
    scope: Scope, receive: Receive, files: FileContext, owner: Owner
) -> tuple[FileRow, list[str]]:
    """Receive a file.

    Returns:
        Its row, once content and row are on the disk; and the names of unknown fields.

    Raises:
        GatewayError: it is refused, or does not fit.
        ClientGone: the upload is incomplete.
    """
    with files.room.coming.counted(owner.tenant) as hold:
        try:
            draft = await asyncio.to_thread(files.vault.draft)
            into = _DraftSink(draft, files.room, owner, hold)
            try:
                form = await receive_form(scope, receive, into, files.limit)
                if into.refusal is not None:
                    raise into.refusal
                row = _row(form, draft.size, int(files.clock.stamp()), owner.tenant)
                # The row comes last: a content without one is deleted at the next start.
                await asyncio.to_thread(draft.commit, row.id)
            finally:
                await asyncio.to_thread(draft.discard)
        except OSError as error:
            raise_for_client(error)
        try:
            await files.database.write(lambda connection: records.add(connection, row))
        # Not for a cancelled upload, whose row may be written all the same; if it is not, the next
        # start deletes the content.
        except GatewayError:
            await asyncio.to_thread(files.vault.remove, [row.id])
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
    is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    if not (is_number and LEAST_SECONDS <= int(text) <= MOST_SECONDS):
        raise InvalidRequest(
            f"{param}.seconds is {text[:32]!r}; it must be from {LEAST_SECONDS} to {MOST_SECONDS}",
            param=param,
        )
    return int(text)


def _row(form: MultipartForm, size: int, now: int, tenant: str) -> FileRow:
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
    return FileRow(
        id=new_id("file-"),
        created_at=now,
        expires_at=None if seconds is None else now + seconds,
        bytes=size,
        filename=form.filename or "upload",
        purpose=purpose,
        tenant=tenant,
    )
