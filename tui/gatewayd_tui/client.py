"""The admin API over its unix socket, for an event loop: a stream of snapshots, and calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import aiohttp
import msgspec

from gatewayd.wire.snapshot import VERSION, Snapshot
from gatewayd_tui.cleaning import cleaned

_SILENCE = 5.0
"""Seconds beyond the interval after which a stream that says nothing is lost."""
_CALL_SECONDS = 60.0
_LONGEST_LINE = 16 * 1024 * 1024


class Lost(Exception):
    """There is no daemon to watch, or it is not understood; the sentence says why."""


class AdminRefused(Exception):
    """The daemon says no to a call; the sentence is its own."""


class Source(Protocol):
    """Where snapshots come from: a daemon, or a recording.

    Attributes:
        name: of it, for people.
        can_change: whether calls reach a daemon.
    """

    name: str
    can_change: bool

    def snapshots(self, interval: float) -> AsyncIterator[Snapshot]:
        """One every ``interval`` seconds. Ends with a recording only.

        Raises:
            Lost: there are no more for now.
        """
        ...

    async def snapshot(self) -> Snapshot:
        """One, at once.

        Raises:
            Lost: there is none.
        """
        ...

    async def call(self, method: str, route: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """One request of the admin API.

        Raises:
            Refused: the answer is an error.
            Lost: there is no answer.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class Live:
    """A running daemon.

    Args:
        path: of its socket.
    """

    can_change = True

    def __init__(self, path: str) -> None:
        self.name = path
        self._path = path
        self._session: aiohttp.ClientSession | None = None

    async def snapshots(self, interval: float) -> AsyncIterator[Snapshot]:
        """One every ``interval`` seconds, as the daemon makes them."""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=interval + _SILENCE)
        route = f"/admin/stream?interval={interval:g}"
        try:
            async with self._open().get(_url(route), timeout=timeout) as answer:
                if answer.status != 200:
                    raise Lost(_sentence(await answer.read()))
                async for line in answer.content:
                    if line.startswith(b"data:"):
                        yield decode(line[5:])
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Lost(self._why(error)) from error
        raise Lost(f"the daemon at {self._path} stopped")

    async def snapshot(self) -> Snapshot:
        """One, made now."""
        try:
            return decode(await self._ask("GET", "/admin/snapshot"))
        except AdminRefused as error:
            raise Lost(str(error)) from error

    async def call(self, method: str, route: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """One request of the admin API."""
        content = await self._ask(method, route, body)
        return msgspec.json.decode(cleaned(content, keeps_lines=True)) if content else None

    async def _ask(self, method: str, route: str, body: object = None) -> bytes:
        timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS)
        try:
            asked = self._open().request(method, _url(route), json=body, timeout=timeout)
            async with asked as answer:
                content = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Lost(self._why(error)) from error
        if answer.status >= 300:
            raise AdminRefused(_sentence(content))
        return content

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(self._path), read_bufsize=_LONGEST_LINE
            )
        return self._session

    def _why(self, error: Exception) -> str:
        if isinstance(error, aiohttp.ClientConnectorError):
            return f"no daemon answers at {self._path}: {error.os_error.strerror or error.os_error}"
        if isinstance(error, TimeoutError):
            return f"the daemon at {self._path} does not respond"
        if isinstance(error, aiohttp.ServerDisconnectedError):
            return f"the daemon at {self._path} denies access"
        return f"lost the connection to {self._path}: {error or type(error).__name__}"


class _Versioned(msgspec.Struct):
    version: int


def decode(line: bytes | str) -> Snapshot:
    """A snapshot from its JSON.

    Raises:
        Lost: it is of another version, or not a snapshot.
    """
    line = cleaned(line.encode() if isinstance(line, str) else line)
    try:
        version = msgspec.json.decode(line, type=_Versioned).version
        if version != VERSION:
            raise Lost(
                f"the daemon sends snapshot version {version}, this console supports {VERSION}: "
                "use the console of the daemon's own release"
            )
        return msgspec.json.decode(line, type=Snapshot)
    except msgspec.DecodeError as error:
        raise Lost(f"invalid snapshot: {error}") from error


def _url(route: str) -> str:
    return f"http://localhost{route}"


def _sentence(content: bytes) -> str:
    """What an error says."""
    try:
        return str(msgspec.json.decode(cleaned(content))["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        said = content[:200].decode("utf-8", "replace")
        return "".join(c if c.isprintable() else " " for c in said) or "no reason given"
