"""Snapshots in a file, one JSON object a line: written beside the console, and played again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec

from gatewayd.wire.snapshot import Snapshot
from gatewayd_tui.client import AdminRefused, Lost, decode


def line_of(snapshot: Snapshot) -> bytes:
    """A snapshot as it stands in a recording."""
    return msgspec.json.encode(snapshot) + b"\n"


def read(path: Path) -> Iterator[Snapshot]:
    """The snapshots of a recording.

    Raises:
        Lost: it cannot be read, holds none, or one that is not understood.
    """
    number = 0
    try:
        with path.open("rb") as file:
            for line in filter(None, map(bytes.strip, file)):
                number += 1
                yield decode(line)
    except OSError as error:
        raise Lost(f"{path} cannot be read: {error.strerror or error}") from error
    except Lost as error:
        raise Lost(f"{path}, line {number}: {error}") from error
    if not number:
        raise Lost(f"{path} holds no snapshot")


class Recorder:
    """Appends to a recording.

    Args:
        path: of the file, which is made if need be, for its owner only.
    """

    def __init__(self, path: Path) -> None:
        path.touch(mode=0o600)
        self.name = str(path)
        self._file: FileIO = path.open("ab", buffering=0)

    def put(self, snapshot: Snapshot) -> None:
        """Write one down.

        Raises:
            OSError: it could not be written, and the file is as it was.
        """
        rest, whole = memoryview(line_of(snapshot)), self._file.tell()
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(whole)
            raise

    def close(self) -> None:
        """End the file."""
        self._file.close()


class Recorded:
    """A recording as a source: it goes by at the interval asked for, and stays at its end."""

    can_change = False

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._played = 0

    async def snapshots(self, interval: float) -> AsyncIterator[Snapshot]:
        """The next ones; the same place is gone on from when the interval changes."""
        for place, snapshot in enumerate(read(self._path)):
            if place >= self._played:
                self._played = place + 1
                yield snapshot
                await asyncio.sleep(interval)

    async def snapshot(self) -> Snapshot:
        """The first."""
        return next(read(self._path))

    async def call(self, method: str, route: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """Nothing can be asked of a recording."""
        raise AdminRefused(f"{self.name} is a recording: it holds snapshots only, no {route}")

    async def close(self) -> None:
        """There is nothing open."""
