"""Portable regular expressions.

Digits, letters and spaces differ between languages: llguidance uses Unicode's, JavaScript ASCII's,
Python something between. Answers are restricted to what all of them accept.
"""

from __future__ import annotations

import re

_ASCII = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r\f\v"}
_WIDE = {"d": r"\d", "w": r"\w\p{N}", "s": r"\s\x1c-\x1f"}
_PART = re.compile(r"\\(?:p\{[^}\\]*+\}|.)|\[\^|\[:\w++:\]|\[|\]|[^\\\[\]]++", re.DOTALL)


def portable(expression: str) -> str:
    """Rewrite the character classes of an expression to the intersection of all languages."""
    found, brackets = [], list[bool]()
    for part in _PART.findall(expression):
        if part in ("[", "[^"):
            brackets.append(part == "[^")
        elif part == "]" and brackets:
            brackets.pop()
        letter = part[1:] if part[0] == "\\" else ""
        if letter.lower() in _ASCII and letter:
            is_negated = brackets[-1] if brackets else False
            part = _class(letter, is_negated=is_negated, is_inside=bool(brackets))
        found.append(part)
    return "".join(found)


def _class(letter: str, *, is_negated: bool, is_inside: bool) -> str:
    """Return the characters of a class: ASCII, or Unicode if the class is negated."""
    name = letter.lower()
    # A class that excludes its characters must exclude those of all languages.
    inner = (_WIDE if is_negated != letter.isupper() else _ASCII)[name]
    if letter.isupper():
        return f"[^{inner}]"
    return inner if is_inside else f"[{inner}]"
