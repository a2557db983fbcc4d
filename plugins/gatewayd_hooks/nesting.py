"""JSON that is nested too deeply to be parsed: which field it is, found without parsing."""

from __future__ import annotations

import json
import re

MAX_DEPTH = 900
"""Objects and arrays in each other that are parsed for certain: Python's parsers stop at 1,000."""


def too_deep(field: str | None) -> str:
    """The sentence that refuses such a body."""
    return (
        f"{field or 'the body'} is nested too deeply: at most {MAX_DEPTH} objects and arrays may "
        "be in each other"
    )


# A string that does not end is read to the end, once.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


def field_too_deep(body: bytes) -> str | None:
    """The field of the outermost object in which nesting goes too deep.

    Returns:
        Its name; None if there is none, or nothing that can be read comes before.
    """
    depth, last, key = 0, b"", b""
    for found in _TOKEN.finditer(body):
        token = found[0]
        if token in (b"{", b"["):
            if depth == 1:
                key = last
            depth += 1
            if depth > MAX_DEPTH:
                break
        elif token in (b"}", b"]"):
            depth -= 1
        elif depth == 1:
            last = token
    else:
        return None
    try:
        name: str = json.loads(key)
    except ValueError:
        return None
    return name[:64]
