"""Sanitization of untrusted text for terminals."""

from __future__ import annotations


def printable(text: str, most: int) -> str:
    """Truncate a text to ``most`` characters and replace unprintable ones by spaces."""
    text = text[:most]
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " for c in text)
