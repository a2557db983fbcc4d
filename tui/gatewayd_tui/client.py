"""Asynchronous client of the admin API over its unix socket: snapshot stream and calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
import msgspec
from aiohttp.http_exceptions import LineTooLong

from gatewayd.wire.models import about_model
from gatewayd.wire.snapshot import VERSION, Snapshot
from gatewayd_tui.cleaning import strip_controls

_SILENCE = 5.0
"""Seconds beyond the interval after which a silent stream counts as lost."""
_CALL_SECONDS = 60.0
_LONGEST_LINE = 16 * 1024 * 1024


class DaemonUnreachable(Exception):
    """No daemon can be reached, or its answer is invalid; the message says why."""


class AdminRefused(Exception):
    """The daemon refused a call; the message is the daemon's."""


class Calls(Protocol):
    """Calls of the admin API."""

    async def call(self, method: str, route: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """Send a request to the admin API and return its decoded answer.

        Raises:
            AdminRefused: the answer is an error.
            DaemonUnreachable: there is no answer.
        """
        ...


class Source(Calls, Protocol):
    """Source of snapshots: a daemon, or a recording.

    Attributes:
        name: display name.
        can_change: whether calls reach a daemon.
        model: that later snapshots are about; None for the first of the daemon.
    """

    name: str
    can_change: bool
    model: str | None

    def snapshots(self, interval: float) -> AsyncIterator[Snapshot]:
        """Iterate over snapshots, one every ``interval`` seconds; only a recording ends.

        Raises:
            DaemonUnreachable: the connection is lost.
        """
        ...

    async def snapshot(self) -> Snapshot:
        """Return the current snapshot.

        Raises:
            DaemonUnreachable: it cannot be fetched.
        """
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


@dataclass(frozen=True, slots=True)
class ModelCalls:
    """Calls about one model of the daemon.

    Attributes:
        source: sends them.
        model: its name; None for the only one.
    """

    source: Calls
    model: str | None

    async def call(self, method: str, route: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """See ``Calls``."""
        return await self.source.call(method, about_model(route, self.model), body)


class DaemonSource:
    """Running daemon as a source.

    Args:
        path: of its admin socket.
        model: that snapshots are about; None for the first.
    """

    can_change = True

    def __init__(self, path: str, model: str | None = None) -> None:
        self.name = path
        self.model = model
        self._path = path
        self._session: aiohttp.ClientSession | None = None

    async def snapshots(self, interval: float) -> AsyncIterator[Snapshot]:
        """Iterate over the daemon's snapshot stream."""
        # A stream has no end, but is never silent for longer than its interval.
        timeout = aiohttp.ClientTimeout(total=None, sock_read=interval + _SILENCE)
        route = about_model(f"/admin/stream?interval={interval:g}", self.model)
        try:
            async with self._open().get(_url(route), timeout=timeout) as answer:
                if answer.status != 200:
                    raise DaemonUnreachable(_error_message(await answer.read()))
                async for line in answer.content:
                    if line.startswith(b"data:"):
                        yield decode(line[5:])
        except (aiohttp.ClientError, LineTooLong, TimeoutError, OSError, ValueError) as error:
            raise DaemonUnreachable(self._why(error)) from error
        raise DaemonUnreachable(f"the daemon at {self._path} stopped")

    async def snapshot(self) -> Snapshot:
        """Fetch a snapshot."""
        try:
            return decode(await self._ask("GET", about_model("/admin/snapshot", self.model)))
        except AdminRefused as error:
            raise DaemonUnreachable(str(error)) from error

    async def call(self, method: str, route: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """Send a request to the admin API and return its decoded answer."""
        content = await self._ask(method, route, body)
        return msgspec.json.decode(strip_controls(content, keeps_lines=True)) if content else None

    async def _ask(self, method: str, route: str, body: object = None) -> bytes:
        timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS)
        try:
            asked = self._open().request(method, _url(route), json=body, timeout=timeout)
            async with asked as answer:
                content = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise DaemonUnreachable(self._why(error)) from error
        if answer.status >= 300:
            raise AdminRefused(_error_message(content))
        return content

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # aiohttp limits a line of a stream to twice its buffer.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(self._path), read_bufsize=_LONGEST_LINE
            )
        return self._session

    def _why(self, error: Exception) -> str:
        if isinstance(error, aiohttp.ClientConnectorError):
            return f"no daemon answers at {self._path}: {error.os_error.strerror or error.os_error}"
        if isinstance(error, TimeoutError):
            return f"the daemon at {self._path} does not respond"
        # The daemon closes connections of other users without an answer.
        if isinstance(error, aiohttp.ServerDisconnectedError):
            return f"the daemon at {self._path} denies access"
        if isinstance(error, LineTooLong):
            return f"the daemon at {self._path} sent a snapshot that is too long"
        return f"lost the connection to {self._path}: {error or type(error).__name__}"


class _Versioned(msgspec.Struct):
    version: int


def decode(line: bytes | str) -> Snapshot:
    """Decode a snapshot from JSON.

    Raises:
        DaemonUnreachable: it is of another version, or not a snapshot.
    """
    # Before decoding: no screen has to clean what it shows.
    line = strip_controls(line.encode() if isinstance(line, str) else line)
    try:
        # The version first, since a snapshot of another one may not decode at all.
        version = msgspec.json.decode(line, type=_Versioned).version
        if version != VERSION:
            raise DaemonUnreachable(
                f"the daemon sends snapshot version {version}, this console supports {VERSION}: "
                "use the console of the daemon's own release"
            )
        return msgspec.json.decode(line, type=Snapshot)
    except msgspec.DecodeError as error:
        raise DaemonUnreachable(f"invalid snapshot: {error}") from error


def _url(route: str) -> str:
    return f"http://localhost{route}"


def _error_message(content: bytes) -> str:
    """Return the message of an error answer."""
    try:
        return str(msgspec.json.decode(strip_controls(content))["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        said = content[:200].decode("utf-8", "replace")
        return "".join(c if c.isprintable() else " " for c in said) or "no reason given"
