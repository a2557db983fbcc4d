"""Whether llguidance may look for forced tokens.

It spells all that is forced anew at every token, so that a long run, as ``(ab){1000}`` repeated a
thousand times, takes a second of each. Where there may be one it is told not to look.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LONGEST = 4000
"""Letters that may be forced in a row: some milliseconds."""
NOTHING = '%llguidance {"no_forcing": true}'
"""Of a grammar that forces nothing."""
_COUNT = re.compile(r"\{\s*+(\d++)")


def header(texts: Iterable[str]) -> str:
    """The first line of a grammar that is made of texts, each with all repetitions of its own."""
    if any(_at_most(text) > LONGEST for text in texts):
        return NOTHING
    return "%llguidance {}"


def _at_most(text: str) -> int:
    """Letters that a text may force: no more than if all repetitions were in each other."""
    size = len(text)
    for count in _COUNT.findall(text):
        size *= max(1, int(count[:9]))
        if size > LONGEST:
            break
    return size


def strings_in(value: object) -> Iterable[str]:
    """Every string of a schema, keys included."""
    open_ = [value]
    while open_:
        one = open_.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            yield from one
            open_ += one.values()
        elif isinstance(one, list):
            open_ += one
