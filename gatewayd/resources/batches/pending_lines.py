"""Pending lines of one batch: lines not read yet, and refused lines to be retried.

A few lines are read ahead into memory; of refused ones only the offset in the input is stored.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable, Container
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import NamedTuple

from gatewayd.resources.batches.lines import BatchLine, Position, line_at, some_lines

_MOST_REFUSED = 64
"""Refused lines in memory, beyond which no further line is read before one of them is retried."""
_MOST_SECONDS = 600.0
"""Maximum backoff of a line that was refused repeatedly."""


class PendingLine(NamedTuple):
    """A line to run.

    Attributes:
        line: the line.
        refusals: number of its refusals.
        losses: of these, refusals because its engine was lost.
    """

    line: BatchLine
    refusals: int = 0
    losses: int = 0


class _PendingRetry(NamedTuple):
    """A refused line, ordered by the time of its next attempt."""

    at: float
    number: int
    offset: int
    refusals: int
    losses: int


@dataclass(slots=True, eq=False, repr=False)
class PendingLines:
    """Yields lines to run, one by one.

    Args:
        path: path of the input.
        endpoint: endpoint that every line names.
        total: number of requests of the input.
        done: numbers of lines that have a result.
        clock: seconds; monotonic.
    """

    _path: Path
    _endpoint: str
    _: KW_ONLY
    total: int
    done: Container[int]
    clock: Callable[[], float] = time.monotonic
    _position: Position | None = field(default_factory=Position)
    _read_ahead: deque[BatchLine] = field(default_factory=deque)
    _refused: list[_PendingRetry] = field(default_factory=list)
    _num_out: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def has_more(self) -> bool:
        """Wait until there may be a line to run; return False once all have results."""
        while not (self._read_ahead or self._position or self._refused):
            # Lines in flight may be refused and come back, so the end is only known without any.
            if not self._num_out:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    async def next(self) -> PendingLine | None:
        """Return the next line; None if there is none now.

        Raises:
            OSError: the input cannot be read.
        """
        # Before new lines once its time has come, and while too many are in memory.
        if self._is_refused_next():
            return await self._again()
        while not self._read_ahead and self._position is not None:
            found, self._position = await asyncio.to_thread(
                some_lines,
                self._path,
                self._endpoint,
                self._position,
                total=self.total,
                without=self.done,
            )
            self._read_ahead.extend(found)
        if self._read_ahead:
            self._num_out += 1
            return PendingLine(self._read_ahead.popleft())
        # With nothing else to read its own backoff is skipped: the congestion window has one.
        return await self._again() if self._refused else None

    def refused(self, todo: PendingLine, seconds: float, *, is_lost: bool) -> None:
        """Schedule a retry of a line after these seconds, or once no other line is to be run."""
        # A hint of the server beyond the maximum is respected.
        backoff = min(seconds * 2.0**todo.refusals, max(seconds, _MOST_SECONDS))
        one = _PendingRetry(
            self.clock() + backoff,
            todo.line.number,
            todo.line.offset,
            # Bounded, since the power above would overflow a float at 1024.
            min(todo.refusals + 1, 64),
            todo.losses + is_lost,
        )
        heapq.heappush(self._refused, one)
        self.ended()

    def ended(self) -> None:
        """Count a line of ``next`` that has a result, or was refused."""
        self._num_out -= 1
        self._changed.set()

    def _is_refused_next(self) -> bool:
        if not self._refused:
            return False
        return self._refused[0].at <= self.clock() or len(self._refused) > _MOST_REFUSED

    async def _again(self) -> PendingLine:
        one = heapq.heappop(self._refused)
        self._num_out += 1
        line = await asyncio.to_thread(line_at, self._path, self._endpoint, one.offset, one.number)
        return PendingLine(line, one.refusals, one.losses)
