"""The line before the processes that check grammars: how long it may be, and who is next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gatewayd.errors import QueueFull

_MOST = 256
_MOST_CHARS = 256 << 10
_SHORT_CHARS = 4 << 10
"""One that is no longer is kept out by the number of others alone, not by how long they are."""
_RETRY_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class _Place:
    chars: int
    turn: asyncio.Future[None]


class Line:
    """Lets so many go at once. The shortest is next, and every other time the one that came first.

    So a short one waits for one or two of those before it, however many there are, and a long one
    for twice as many as stood before it at most.

    Args:
        at_once: how many may go, as the configuration of now says.
    """

    def __init__(self, at_once: Callable[[], int]) -> None:
        self._at_once = at_once
        self._going = 0
        self._waiting: list[_Place] = []
        self._is_shortest = True

    def __len__(self) -> int:
        """Those that wait."""
        return len(self._waiting)

    async def enter(self, chars: int) -> None:
        """Wait for a turn, or leave the line where the waiting is cancelled.

        Args:
            chars: how long its grammar is.

        Raises:
            QueueFull: the line is too long for it.
        """
        self._check(chars)
        place = _Place(chars, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        self._begin()
        try:
            await place.turn
        except asyncio.CancelledError:
            if place in self._waiting:
                self._waiting.remove(place)
            else:
                self.leave()
            raise

    def leave(self) -> None:
        """A turn is over."""
        self._going -= 1
        self._begin()

    def _check(self, chars: int) -> None:
        if len(self._waiting) >= _MOST:
            reason = f"{len(self._waiting)} grammars wait to be checked; the limit is {_MOST}"
            raise QueueFull(f"{reason}; try again later", retry_after=_RETRY_SECONDS)
        ahead = sum(one.chars for one in self._waiting)
        if ahead and chars > _SHORT_CHARS and ahead + chars > _MOST_CHARS:
            raise QueueFull(
                f"grammars of {ahead:,} characters wait to be checked and this one has {chars:,}; "
                f"the limit is {_MOST_CHARS:,}; try again later",
                retry_after=_RETRY_SECONDS,
            )

    def _begin(self) -> None:
        while self._waiting and self._going < self._at_once():
            waiting = self._waiting
            shortest = min(range(len(waiting)), key=lambda i: waiting[i].chars)
            place = waiting.pop(shortest if self._is_shortest else 0)
            self._is_shortest = not self._is_shortest
            self._going += 1
            place.turn.set_result(None)
