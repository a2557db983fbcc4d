"""What a plugin adds to the admin console, as data: panels that show, actions that act.

The console draws a panel and asks before an action; a plugin knows no widget, and needs none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Look = Mapping[str, Any]
"""The daemon at one instant, as ``GET /admin/snapshot`` answers it. It is not to be changed."""

_ID = re.compile(r"[a-z][a-z0-9_]*")
_MOST_LETTERS = 40


class Refused(Exception):
    """The daemon did not do what it was asked, or cannot be reached; the sentence says why."""


class AdminCalls(Protocol):
    """The admin API of the daemon that the console shows."""

    def call(self, method: str, route: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """Ask the daemon, such as ``call("POST", "/admin/pause", {"seconds": 60})``; its answer.

        Raises:
            Refused: it says no, or nobody answers.
        """
        ...


@dataclass(frozen=True, slots=True)
class Rows:
    """A table. All rows have a cell for each column; what is in it is shown as ``str`` shows it.

    Attributes:
        columns: their headings.
        rows: the first 200 are shown; the first cell names a row and is unlike all others.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True, slots=True)
class Panel:
    """A screen of the console.

    Attributes:
        id: ``[a-z][a-z0-9_]*``, unlike the plugin's others.
        title: for people, at most 40 letters.
        show: what to show of a daemon, rows or lines of text. Called in a thread, with each
            snapshot while the panel is looked at, and must come back within a second.
        key: that opens it, as ``f6`` or ``ctrl+y``; empty, or one that the console has given
            away already: it is opened from the palette.
    """

    id: str
    title: str
    show: Callable[[Look], Rows | Sequence[str]]
    key: str = ""

    def __post_init__(self) -> None:
        _check(self.id, self.title)


@dataclass(frozen=True, slots=True)
class Action:
    """Something that the console can do, from its palette or by a key.

    Attributes:
        id: ``[a-z][a-z0-9_]*``, unlike the plugin's others.
        title: for people, at most 40 letters, as an order: ``Shed batch requests``.
        run: does it, in a thread, and says in a sentence what came of it. ``Refused`` may come
            out of it.
        is_destructive: something is lost: the console asks before.
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
