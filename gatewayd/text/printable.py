"""What a terminal may be shown of a text that somebody else wrote."""

from __future__ import annotations


def printable(text: str, most: int) -> str:
    """One line of it, at most so many characters: what is no printable one is a space."""
    text = text[:most]
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " for c in text)
