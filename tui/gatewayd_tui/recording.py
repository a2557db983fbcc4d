"""Recordings of snapshots, one JSON object per line: written by the console, and replayed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec

from gatewayd.wire.snapshot import Snapshot
from gatewayd_tui.client import AdminRefused, DaemonUnreachable, decode


def line_of(snapshot: Snapshot) -> bytes:
    """Encode a snapshot as a line of a recording."""
    return msgspec.json.encode(snapshot) + b"\n"


def read(path: Path) -> Iterator[Snapshot]:
    """Iterate over the snapshots of a recording.

    Raises:
        DaemonUnreachable: it cannot be read, is empty, or has an invalid line.
    """
    number = 0
    try:
        with path.open("rb") as file:
            for line in filter(None, map(bytes.strip, file)):
                number += 1
                yield decode(line)
    except OSError as error:
        raise DaemonUnreachable(f"{path} cannot be read: {error.strerror or error}") from error
    except DaemonUnreachable as error:
        raise DaemonUnreachable(f"{path}, line {number}: {error}") from error
    if not number:
        raise DaemonUnreachable(f"{path} holds no snapshot")


class Recorder:
    """Writer that appends to a recording.

    Args:
        path: of the file, which is created if necessary, readable by its owner only.
    """

    def __init__(self, path: Path) -> None:
        # Private, since snapshots name tenants; an existing file keeps its mode.
        path.touch(mode=0o600)
        self.name = str(path)
        # Unbuffered: an error is raised by the write that it concerns.
        self._file: FileIO = path.open("ab", buffering=0)

    def append(self, snapshot: Snapshot) -> None:
        """Append a snapshot.

        Raises:
            OSError: it could not be written; the file is unchanged.
        """
        # A full disk may take a part of a line, which would make the recording unreadable.
        rest, whole = memoryview(line_of(snapshot)), self._file.tell()
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(whole)
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Recorded:
    """Recording as a source: replayed at the given interval; the last snapshot stays."""

    can_change = False

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.model: str | None = None
        self._path = path
        self._played = 0

    async def snapshots(self, interval: float) -> AsyncIterator[Snapshot]:
        """Iterate over the remaining snapshots; the position survives a change of interval."""
        for index, snapshot in enumerate(read(self._path)):
            if index >= self._played:
                self._played = index + 1
                yield snapshot
                await asyncio.sleep(interval)

    async def snapshot(self) -> Snapshot:
        """Return the first snapshot."""
        return next(read(self._path))

    async def call(self, method: str, route: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """Refuse: a recording has snapshots only."""
        raise AdminRefused(f"{self.name} is a recording: it holds snapshots only, no {route}")

    async def close(self) -> None:
        """Do nothing: no connection is open."""
