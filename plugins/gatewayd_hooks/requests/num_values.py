"""Counts JSON values without decoding; decoded they may take a hundred times the bytes."""

from __future__ import annotations

import re

MOST_VALUES = 1 << 18
"""Limit on lists, objects and strings in a body. Numbers are small, and a prompt may have a million
of them."""
TOO_MANY = (
    f"the body has more than {MOST_VALUES} lists, objects and strings, which is the maximum: "
    "send it in parts"
)

_STRING = re.compile(rb'"[\[{]*+"?')
_NO_MARKS = bytes(set(range(256)) - set(b'"[{'))


def has_too_many(body: bytes) -> bool:
    """Whether a body has more than ``MOST_VALUES`` lists, objects and strings."""
    # Each value takes a byte at least.
    if len(body) <= MOST_VALUES:
        return False
    # An upper bound, as marks within strings count, too.
    if body.count(b'"') // 2 + body.count(b"[") + body.count(b"{") <= MOST_VALUES:
        return False
    return num_values(body) > MOST_VALUES


def num_values(text: bytes) -> int:
    """Count lists, objects and strings of JSON; above ``MOST_VALUES`` perhaps only the strings.

    Brackets and escaped quotation marks within strings do not count.
    """
    # All steps except the last are linear in bytes; the last iterates over strings, of which there
    # are few enough here.
    marks = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_MARKS)
    num_strings = marks.count(b'"') // 2
    if num_strings > MOST_VALUES:
        return num_strings
    return num_strings + len(_STRING.sub(b"", marks))
