"""Additions to the admin console, as data: panels that display, actions that act.

The console draws panels and asks for confirmation; a plugin needs no UI toolkit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Look = Mapping[str, Any]
"""Snapshot of the daemon, as ``GET /admin/snapshot`` returns it. Read-only."""

_ID = re.compile(r"[a-z][a-z0-9_]*")
_MOST_LETTERS = 40


class Refused(Exception):
    """Raised when the daemon rejects a call or cannot be reached; the message says why."""


class AdminCalls(Protocol):
    """Admin API of the daemon that the console is connected to."""

    def call(self, method: str, route: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """Call a route, such as ``call("POST", "/admin/pause", {"seconds": 60})``.

        Raises:
            Refused: the daemon rejects the call, or does not respond.
        """
        ...


@dataclass(frozen=True, slots=True)
class Rows:
    """Table in which every row has a cell for each column; cells are shown through ``str``.

    Attributes:
        columns: column headings.
        rows: the first 200 are shown; the first cell is a row's unique key.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True, slots=True)
class Panel:
    """Screen of the console.

    Attributes:
        id: ``[a-z][a-z0-9_]*``, unique within the plugin.
        title: human-readable, at most 40 characters.
        show: returns rows or lines of text for a snapshot. Called in a thread for each snapshot
            while the panel is visible, and must return within a second.
        key: key binding, such as ``f6`` or ``ctrl+y``; if empty or already taken, the panel is
            opened from the command palette.
    """

    id: str
    title: str
    show: Callable[[Look], Rows | Sequence[str]]
    key: str = ""

    def __post_init__(self) -> None:
        _check(self.id, self.title)


@dataclass(frozen=True, slots=True)
class Action:
    """Operation of the console, run from its command palette or by a key.

    Attributes:
        id: ``[a-z][a-z0-9_]*``, unique within the plugin.
        title: human-readable imperative, at most 40 characters: ``Shed batch requests``.
        run: performs the action in a thread and returns a sentence about the result. It may raise
            ``Refused``.
        is_destructive: whether data or work is lost: the console then asks for confirmation.
        key: as for a panel.
    """

    id: str
    title: str
    run: Callable[[AdminCalls], str]
    is_destructive: bool
    key: str = ""

    def __post_init__(self) -> None:
        _check(self.id, self.title)


def _check(name: str, title: str) -> None:
    if not _ID.fullmatch(name):
        raise ValueError(f"id is {name!r}; it must be [a-z][a-z0-9_]*")
    if not (title.isprintable() and 0 < len(title.strip()) <= len(title) <= _MOST_LETTERS):
        raise ValueError(f"title of {name} must have 1 to {_MOST_LETTERS} printable letters")
