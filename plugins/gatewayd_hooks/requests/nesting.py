"""Detects JSON that is nested too deeply to be parsed, and in which field, without parsing it."""

from __future__ import annotations

import json
import re
from itertools import accumulate

MAX_DEPTH = 900
"""Limit on nested objects and arrays. Python 3.11 parses 1,000 levels, later versions ten times as
many."""

_STRING = re.compile(rb'"[\[\]{}]*+"?')
_NO_MARKS = bytes(set(range(256)) - set(b'"[]{}'))
_STEPS = {ord(mark): 1 if mark in "[{" else -1 for mark in "[]{}"}


def is_too_deep(body: bytes) -> bool:
    """Whether JSON has more than ``MAX_DEPTH`` levels of objects and arrays."""
    # Almost all bodies have fewer brackets than that, and counting them is cheapest.
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    # In this order: escaped backslashes, then escaped quotation marks, then all that is no mark.
    # What is left between two quotation marks is a string.
    marks = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_MARKS)
    steps = map(_STEPS.__getitem__, _STRING.sub(b"", marks))
    return max(accumulate(steps), default=0) > MAX_DEPTH


def too_deep(field: str | None) -> str:
    """Return the message that refuses such a body."""
    return (
        f"{field or 'the body'} is nested too deeply: at most {MAX_DEPTH} objects and arrays may "
        "be in each other"
    )


# An unterminated string is scanned to the end, once.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


def field_too_deep(body: bytes) -> str | None:
    """Return the field of the outermost object in which the nesting is too deep.

    Returns:
        Its name; None if there is none, or if it cannot be decoded.
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
