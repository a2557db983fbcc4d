"""Decides whether llguidance may look for forced tokens.

It recomputes all forced text at every token, so that a long run, as ``(ab){1000}`` repeated a
thousand times, takes a second for each. For grammars with such runs the search is disabled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LONGEST = 4000
"""Maximum of consecutive forced characters: some milliseconds."""
NOTHING = '%llguidance {"no_forcing": true}'
"""First line of a grammar that forces nothing."""
_COUNT = re.compile(r"\{\s*+(\d++)")


def header(texts: Iterable[str]) -> str:
    """Return the first line of a grammar made of texts, each with independent repetitions."""
    if any(_at_most(text) > LONGEST for text in texts):
        return NOTHING
    return "%llguidance {}"


def _at_most(text: str) -> int:
    """Return an upper bound on the characters a text may force; assumes nested repetitions."""
    size = len(text)
    for count in _COUNT.findall(text):
        # Nine digits are far beyond the limit, and the text may have thousands.
        size *= max(1, int(count[:9]))
        if size > LONGEST:
            break
    return size


def strings_in(value: object) -> Iterable[str]:
    """Yield every string of a schema, keys included."""
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
