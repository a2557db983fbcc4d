"""Meter of one template rendering: counts its cost and checks expensive operations beforehand."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, MappingView, Sequence
from typing import Any

from jinja2.utils import Namespace

MOST_ITERATIONS = 1_000_000
"""Maximum iterations of all loops; a long conversation takes some thousands."""
MOST_CHARS = 1 << 26
"""Maximum characters created, including temporary ones: several times a request body's maximum."""
MOST_SECONDS = 2.0
"""Maximum CPU time of a rendering, in addition to the limits on counts."""
_MOST_NUMBER = 1 << 20
"""Maximum of a width or count argument."""
_MOST_BITS = 1 << 12
_CHECK_INTERVAL, _FILTER_WEIGHT = 256, 16
"""Iterations between clock reads, and the number of iterations that a slow filter counts as."""
_ENTRY = 32
"""Characters that a list entry counts as, by its time and memory."""
_WIDE = re.compile(r"%[^A-Za-z%]*\*|\{[^{}:]*:[^{}]*\{")
"""Format field whose width is an argument."""
_WIDTH = re.compile(r"%[^A-Za-z%]*?(\d+)|\{[^{}:]*:[^{}]*?(\d+)")
_WIDENING = frozenset(("batch", "center", "expandtabs", "indent", "ljust", "rjust", "slice"))
_WIDENING |= frozenset(("tojson", "wordwrap", "zfill"))
"""Filters and methods that pad to a width, or by one."""
_SPREADING = frozenset(("indent", "join", "replace", "urlize", "wordwrap"))
"""Filters and methods that insert a text at many positions of another."""
_WRITING = frozenset(("e", "escape", "forceescape", "join", "pprint", "string", "tojson"))
_WRITING |= frozenset(("urlencode", "urlize", "xmlattr"))
"""Filters that convert values to text."""
_NESTING = frozenset(("batch", "dictsort", "groupby", "slice"))
"""Filters that nest their input one level deeper."""
CHECKED = _WIDENING | _SPREADING | _WRITING | _NESTING | {"format", "sum"}
MATERIALIZED = frozenset(("batch", "groupby", "join", "slice", "sum"))
"""Filters whose iterable input is materialized before the check."""


class RenderLimitExceeded(Exception):
    """A rendering exceeds one of its resource limits."""


class TemplateMeter:
    """Counts iterations, characters and CPU time of one rendering."""

    __slots__ = ("_began", "_next_check", "chars", "iterations")

    def __init__(self) -> None:
        self.iterations = self.chars = 0
        self._next_check = _CHECK_INTERVAL
        self._began: float | None = None  # read late: most end before the first clock read

    def count_iterations(self, chars: int = 0, iterations: int = 1) -> None:
        """Count iterations of a loop, with the characters of template text in its body.

        Raises:
            RenderLimitExceeded: a limit is exceeded.
        """
        self.iterations += iterations
        if self.iterations >= self._next_check:
            self._check()
        if chars:
            self.count_chars(chars)

    def count_filter(self) -> None:
        """Count a filter call, which may iterate over a whole list.

        Raises:
            RenderLimitExceeded: a limit is exceeded.
        """
        self._next_check -= _FILTER_WEIGHT
        self.count_iterations()

    def _check(self) -> None:
        self._next_check = self.iterations + _CHECK_INTERVAL
        if self.iterations > MOST_ITERATIONS:
            raise RenderLimitExceeded(
                f"it makes more than {MOST_ITERATIONS:,} iterations and calls"
            )
        # CPU time of this thread: a busy machine or other renderings do not count.
        now = time.thread_time()
        if self._began is None:
            self._began = now
        if now - self._began > MOST_SECONDS:
            raise RenderLimitExceeded(f"it takes more than {MOST_SECONDS:g} seconds")

    def count_chars(self, chars: int) -> None:
        """Count created characters, or list entries.

        Raises:
            RenderLimitExceeded: the limit is exceeded.
        """
        self.chars += chars
        if self.chars > MOST_CHARS:
            raise RenderLimitExceeded(f"it makes more than {MOST_CHARS:,} characters")

    def count_result(self, found: object) -> None:
        """Count the size of the result of a method, filter or operator."""
        if isinstance(found, str | list | tuple):
            self.count_chars(len(found))

    def check_operation(self, name: str, value: Any, arguments: Sequence[Any]) -> None:  # noqa: ANN401
        """Check before a method or filter is called that its result would not be too large.

        Args:
            name: of the method or filter; only those of ``CHECKED`` can be too large.
            value: that it is applied to.
            arguments: that it is called with.

        Raises:
            RenderLimitExceeded: the result would be too large.
        """
        if name == "format":
            self.count_chars(0 if isinstance(value, str) else size(value))
            _check_format(str(value), arguments)
        if name in _WIDENING:
            _check_widths(name, value, arguments)
        if name in _SPREADING and arguments:
            longest = max([size(one) for one in arguments], default=0)
            _check_chars(name, (1 + _num_positions(value)) * longest)
        # Each addition of two lists copies both.
        if name == "sum" and any(isinstance(one, list | tuple) for one in arguments):
            _check_chars(name, len(value) * size(value))
        if name in _NESTING or (name in _WRITING and not isinstance(value, str)):
            self.count_chars(size(value))


def check_bits(bits: int) -> None:
    """Check the size of an integer.

    Raises:
        RenderLimitExceeded: it has too many bits.
    """
    if bits > _MOST_BITS:
        raise RenderLimitExceeded(f"it computes with numbers of more than {_MOST_BITS:,} bits")


def size(value: object) -> int:
    """Estimate the characters of all texts in a value; stops counting beyond ``MOST_CHARS``."""
    if isinstance(value, str):
        return len(value)
    # Iterative: values may be nested more deeply than the interpreter's stack allows.
    found, left = 0, [value]
    while left and found <= MOST_CHARS:
        one = left.pop()
        if isinstance(one, Namespace):
            one = vars(one).get("_Namespace__attrs", {})
        if isinstance(one, str):
            found += len(one)
        elif isinstance(one, bytes):
            found += 4 * len(one)  # rendered as ``\xNN``
        elif isinstance(one, Mapping):
            left += [*one, *one.values()]
            found += _ENTRY * len(one)
        elif isinstance(one, list | tuple | MappingView):
            left += one if isinstance(one, list | tuple) else [*_entries(one)]
            found += _ENTRY * len(one)
    return found


def _entries(view: Any) -> Iterable[Any]:  # noqa: ANN401 - keys, values or items
    return view  # type: ignore[no-any-return]


def _check_chars(name: str, chars: int) -> None:
    if chars > MOST_CHARS:
        raise RenderLimitExceeded(f"{name} makes more than {MOST_CHARS:,} characters")


def _num_positions(value: object) -> int:
    """Return the number of insertion positions; a number has at most as many digits as bits."""
    return len(value) if isinstance(value, str | list | tuple) else _MOST_BITS


def _check_format(text: str, arguments: Sequence[Any]) -> None:
    """Check a format's result, if every field has the longest argument and the largest width."""
    if _WIDE.search(text):
        raise RenderLimitExceeded("it pads to a width from an argument")
    # Nine digits exceed the limit already, and converting very long numbers is slow.
    widest = max([int((a or b)[:9]) for a, b in _WIDTH.findall(text)], default=0)
    if widest > _MOST_NUMBER:
        raise RenderLimitExceeded(f"it pads to more than {_MOST_NUMBER:,} characters")
    longest = max([size(one) for one in arguments], default=0)
    _check_chars("format", (text.count("{") + text.count("%")) * (widest + longest))


def _check_widths(name: str, value: Any, arguments: Sequence[Any]) -> None:  # noqa: ANN401
    widest = max([abs(one) for one in arguments if isinstance(one, int)], default=0)
    if widest > _MOST_NUMBER:
        raise RenderLimitExceeded(f"{name} has an argument above {_MOST_NUMBER:,}")
    if name == "expandtabs":
        _check_chars(name, value.count("\t") * max(8, widest))
    elif name == "indent" and isinstance(value, str):
        _check_chars(name, (1 + len(value.splitlines())) * widest)
    elif name == "tojson" and widest and isinstance(value, Mapping | list | tuple):
        # Each entry is on its own line, indented by its depth.
        _check_chars(name, size(value) // _ENTRY * widest * _depth(value))


def _depth(value: object) -> int:
    """Return the nesting depth of lists and objects in a value."""
    depth, level = 0, [value]
    while level:
        depth += 1
        inner: dict[int, object] = {}  # shared values are visited once per level
        for one in level:
            for part in one.values() if isinstance(one, Mapping) else one:  # type: ignore[attr-defined]
                if isinstance(part, Mapping | list | tuple):
                    inner[id(part)] = part
        level = [*inner.values()]
    return depth
