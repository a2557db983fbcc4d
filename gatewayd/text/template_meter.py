"""What one rendering of a template has taken, and what its next operation would make at once."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, MappingView, Sequence
from typing import Any

from jinja2.utils import Namespace

MOST_TURNS = 1_000_000
"""Of all loops; a long conversation takes some thousands."""
MOST_CHARS = 1 << 26
"""That are made, also to be thrown away: some times as many as a body may have."""
MOST_SECONDS = 2.0
"""Of a processor: each operation is short, and there may be a million."""
_MOST_NUMBER = 1 << 20
"""Of a width or a count."""
_MOST_BITS = 1 << 12
_LOOKED, _FILTER = 256, 16
"""Turns after which the clock is asked, and as how many of them a filter may be as slow."""
_ENTRY = 32
"""Characters that one of a list counts for, in time as in memory."""
_WIDE = re.compile(r"%[^A-Za-z%]*\*|\{[^{}:]*:[^{}]*\{")
"""A width that somebody gives."""
_WIDTH = re.compile(r"%[^A-Za-z%]*?(\d+)|\{[^{}:]*:[^{}]*?(\d+)")
_WIDENING = frozenset(("batch", "center", "expandtabs", "indent", "ljust", "rjust", "slice"))
_WIDENING |= frozenset(("tojson", "wordwrap", "zfill"))
"""Fill up to a width, or by one."""
_SPREADING = frozenset(("indent", "join", "replace", "urlize", "wordwrap"))
"""Put one text wherever another has something."""
_WRITING = frozenset(("e", "escape", "forceescape", "join", "pprint", "string", "tojson"))
_WRITING |= frozenset(("urlencode", "urlize", "xmlattr"))
"""Make text of what is none."""
_NESTING = frozenset(("batch", "dictsort", "groupby", "slice"))
"""Put what they are given one level deeper."""
LOOKED_AT = _WIDENING | _SPREADING | _WRITING | _NESTING | {"format", "sum"}
WHOLE = frozenset(("batch", "groupby", "join", "slice", "sum"))
"""Are looked at with all that they go over."""


class TooMuch(Exception):
    """A rendering takes more than it may."""


class TemplateMeter:
    """By one rendering."""

    __slots__ = ("_began", "_look_at", "chars", "turns")

    def __init__(self) -> None:
        self.turns = self.chars = 0
        self._look_at = _LOOKED
        self._began: float | None = None  # most end before the clock, a system call, is asked

    def turn(self, chars: int = 0, turns: int = 1) -> None:
        """Count one of a loop, or some, with so much of the template's own text in it.

        Raises:
            TooMuch: that was one too many.
        """
        self.turns += turns
        if self.turns >= self._look_at:
            self._check()
        if chars:
            self.write(chars)

    def filter(self) -> None:
        """Count what may go over a whole list.

        Raises:
            TooMuch: that was one too many.
        """
        self._look_at -= _FILTER
        self.turn()

    def _check(self) -> None:
        self._look_at = self.turns + _LOOKED
        if self.turns > MOST_TURNS:
            raise TooMuch(f"it takes more than {MOST_TURNS:,} turns and calls")
        now = time.thread_time()
        if self._began is None:
            self._began = now
        if now - self._began > MOST_SECONDS:
            raise TooMuch(f"it takes more than {MOST_SECONDS:g} seconds")

    def write(self, chars: int) -> None:
        """Count characters, or entries of a list.

        Raises:
            TooMuch: these were too many.
        """
        self.chars += chars
        if self.chars > MOST_CHARS:
            raise TooMuch(f"it makes more than {MOST_CHARS:,} characters")

    def made(self, found: object) -> None:
        """Count what a method, a filter or an operator gave."""
        if isinstance(found, str | list | tuple):
            self.write(len(found))

    def look(self, name: str, value: Any, arguments: Sequence[Any]) -> None:  # noqa: ANN401
        """See before a method or a filter is called that it does not make too much at once.

        Args:
            name: of it; only ``LOOKED_AT`` can.
            value: that it is of.
            arguments: that it is given.

        Raises:
            TooMuch: it would.
        """
        if name == "format":
            self.write(0 if isinstance(value, str) else size(value))
            _look_at_format(str(value), arguments)
        if name in _WIDENING:
            _look_at_widths(name, value, arguments)
        if name in _SPREADING and arguments:
            longest = max([size(one) for one in arguments], default=0)
            _see(name, (1 + _places(value)) * longest)
        if name == "sum" and any(isinstance(one, list | tuple) for one in arguments):
            _see(name, len(value) * size(value))
        if name in _NESTING or (name in _WRITING and not isinstance(value, str)):
            self.write(size(value))


def check_bits(bits: int) -> None:
    """See that a number is not too long.

    Raises:
        TooMuch: it is.
    """
    if bits > _MOST_BITS:
        raise TooMuch(f"it computes with numbers of more than {_MOST_BITS:,} bits")


def size(value: object) -> int:
    """Characters of the texts in a value, about; no more than one beyond what there may be."""
    if isinstance(value, str):
        return len(value)
    found, left = 0, [value]
    while left and found <= MOST_CHARS:
        one = left.pop()
        if isinstance(one, Namespace):
            one = vars(one).get("_Namespace__attrs", {})
        if isinstance(one, str):
            found += len(one)
        elif isinstance(one, bytes):
            found += 4 * len(one)  # as they are shown
        elif isinstance(one, Mapping):
            left += [*one, *one.values()]
            found += _ENTRY * len(one)
        elif isinstance(one, list | tuple | MappingView):
            left += one if isinstance(one, list | tuple) else [*_entries(one)]
            found += _ENTRY * len(one)
    return found


def _entries(view: Any) -> Iterable[Any]:  # noqa: ANN401 - keys, values or items
    return view  # type: ignore[no-any-return]


def _see(name: str, chars: int) -> None:
    if chars > MOST_CHARS:
        raise TooMuch(f"{name} makes more than {MOST_CHARS:,} characters")


def _places(value: object) -> int:
    """At which something may be put; a number has no more digits than it may have bits."""
    return len(value) if isinstance(value, str | list | tuple) else _MOST_BITS


def _look_at_format(text: str, arguments: Sequence[Any]) -> None:
    """Each field may be filled with the longest, and is as wide as the widest."""
    if _WIDE.search(text):
        raise TooMuch("it fills up to a width that is given")
    widest = max([int((a or b)[:9]) for a, b in _WIDTH.findall(text)], default=0)
    if widest > _MOST_NUMBER:
        raise TooMuch(f"it fills up to more than {_MOST_NUMBER:,} characters")
    longest = max([size(one) for one in arguments], default=0)
    _see("format", (text.count("{") + text.count("%")) * (widest + longest))


def _look_at_widths(name: str, value: Any, arguments: Sequence[Any]) -> None:  # noqa: ANN401
    widest = max([abs(one) for one in arguments if isinstance(one, int)], default=0)
    if widest > _MOST_NUMBER:
        raise TooMuch(f"{name} is given more than {_MOST_NUMBER:,}")
    if name == "expandtabs":
        _see(name, value.count("\t") * max(8, widest))
    elif name == "indent" and isinstance(value, str):
        _see(name, (1 + len(value.splitlines())) * widest)
    elif name == "tojson" and widest and isinstance(value, Mapping | list | tuple):
        # Each entry on a line of its own, as far to the right as it is deep.
        _see(name, size(value) // _ENTRY * widest * _depth(value))


def _depth(value: object) -> int:
    """Lists and objects in each other, at most."""
    depth, level = 0, [value]
    while level:
        depth += 1
        inner: dict[int, object] = {}  # what stands at several places is looked at once
        for one in level:
            for part in one.values() if isinstance(one, Mapping) else one:  # type: ignore[attr-defined]
                if isinstance(part, Mapping | list | tuple):
                    inner[id(part)] = part
        level = [*inner.values()]
    return depth
