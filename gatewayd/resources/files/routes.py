"""Routes of ``/v1/files``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from gatewayd.errors import InternalError, NotFound
from gatewayd.http.asgi import Receive, Scope, Send, ignored_header, send_json
from gatewayd.http.query import listed, page_of, query_of
from gatewayd.http.server.authentication import check_origin
from gatewayd.resources.files import records
from gatewayd.resources.files.context import FileContext
from gatewayd.resources.files.upload import receive_file
from gatewayd.tenants.principal import principal_of

_DEFAULT_LIMIT = _MOST = 10_000
_PIECE = 1 << 18


class FileCreate:
    """``POST /v1/files``."""

    def __init__(self, files: FileContext) -> None:
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Receive a file."""
        files = self._files
        if files.only_local_pages:
            check_origin(scope)
        row, ignored = await receive_file(scope, receive, files, principal_of(scope))
        await send_json(send, row.shown(), headers=ignored_header(ignored))


class FileList:
    """``GET /v1/files``."""

    def __init__(self, files: FileContext) -> None:
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """List files, optionally those of a purpose."""
        query, tenant = query_of(scope), principal_of(scope).tenant
        page = page_of(query, default=_DEFAULT_LIMIT, most=_MOST)
        rows = await self._files.database.read(
            lambda connection: records.page(connection, tenant, page, query.get("purpose"))
        )
        await send_json(send, listed([row.shown() for row in rows], page))


class FileOne:
    """``GET /v1/files/{file_id}``."""

    def __init__(self, files: FileContext) -> None:
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Show a file."""
        row = await _found(self._files, scope)
        await send_json(send, row.shown())


class FileDelete:
    """``DELETE /v1/files/{file_id}``."""

    def __init__(self, files: FileContext) -> None:
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Delete a file, unless a batch reads it."""
        files, file_id = self._files, scope["path_params"]["file_id"]
        tenant = principal_of(scope).tenant
        await files.database.write(lambda connection: records.remove(connection, tenant, file_id))
        await asyncio.to_thread(files.vault.remove, [file_id])
        await send_json(send, {"id": file_id, "object": "file", "deleted": True})


class FileContent:
    """``GET /v1/files/{file_id}/content``."""

    def __init__(self, files: FileContext) -> None:
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the content in pieces; if it is deleted meanwhile, it is still sent completely."""
        row = await _found(self._files, scope)
        # Opened before the status is sent, so that a missing content is still an HTTP error.
        content = await asyncio.to_thread(_open, self._files.vault.path(row.id))
        try:
            headers = [
                (b"content-type", b"application/octet-stream"),
                (b"content-length", b"%d" % row.bytes),
                (b"content-disposition", _disposition(row.filename)),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            left = row.bytes
            while left:
                # In a thread, since a read from a busy disk may block for long.
                piece = await asyncio.to_thread(content.read, min(_PIECE, left))
                if not piece:
                    raise InternalError(f"the content of {row.id} ends too early")
                left -= len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            content.close()


async def _found(files: FileContext, scope: Scope) -> records.FileRow:
    tenant, file_id = principal_of(scope).tenant, scope["path_params"]["file_id"]
    return await files.database.read(lambda connection: records.find(connection, tenant, file_id))


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError as error:  # it was deleted just now
        raise NotFound(f"there is no file {path.name!r}", param="file_id") from error
    except OSError as error:
        raise InternalError(f"the content of {path.name} cannot be read") from error


def _disposition(filename: str) -> bytes:
    # The extended form of RFC 6266: no client's file name can end the value or the header.
    return b"attachment; filename*=UTF-8''" + quote(filename, safe="").encode()
