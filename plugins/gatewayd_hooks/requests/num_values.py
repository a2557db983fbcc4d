"""Counts the values of JSON without decoding it: decoded it may take a hundred times its bytes."""

from __future__ import annotations

import re

MOST_VALUES = 1 << 18
"""Lists, objects and strings of a body. Numbers are small, and prompts may be a million of them."""
TOO_MANY = (
    f"the body has more than {MOST_VALUES} lists, objects and strings, which is the maximum: "
    "send it in parts"
)

_STRING = re.compile(rb'"[\[{]*+"?')
_NO_MARKS = bytes(set(range(256)) - set(b'"[{'))


def has_too_many(body: bytes) -> bool:
    """Whether a body has more than ``MOST_VALUES`` lists, objects and strings."""
    if len(body) <= MOST_VALUES:
        return False
    if body.count(b'"') // 2 + body.count(b"[") + body.count(b"{") <= MOST_VALUES:
        return False
    return num_values(body) > MOST_VALUES


def num_values(text: bytes) -> int:
    """Lists, objects and strings of JSON; of more than ``MOST_VALUES`` perhaps the strings alone.

    Texts may have brackets and escaped quotation marks, which do not count.
    """
    # All steps but the last go over the bytes; that one goes over strings, and has few enough.
    marks = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_MARKS)
    num_strings = marks.count(b'"') // 2
    if num_strings > MOST_VALUES:
        return num_strings
    return num_strings + len(_STRING.sub(b"", marks))
