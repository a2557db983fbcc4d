"""Converts regular expressions to XGrammar's dialect.

XGrammar matches an expression against the whole text, ignores ``^`` and ``$`` anywhere, and matches
any character with a dot.
"""

from __future__ import annotations

import re

from gatewayd_hooks.guiding import GrammarRefused

_COUNT = re.compile(r"\{\s*+(\d++)\s*+(?:,\s*+(\d*+)\s*+)?\}")
_MOST_COUNTS = 1_000_000
# An unterminated class is scanned to the end, once: XGrammar refuses it.
_PART = re.compile(r"\\.|\[\^?(?:\\.|[^\]\\])*+\]?|.", re.DOTALL)


def whole(expression: str, *, anchored: bool = False) -> str:
    """Return the expression without anchors, and with dots that do not match line ends.

    Args:
        expression: of the request.
        anchored: whether it is searched in a text, and so must have both anchors.

    Raises:
        GrammarRefused: it has anchors elsewhere, or lacks them.
    """
    parts = _PART.findall(expression)
    begins, ends = parts[:1] == ["^"], parts[-1:] == ["$"]
    inner = parts[begins : len(parts) - ends]
    if "^" in inner or "$" in inner:
        raise GrammarRefused("xgrammar supports ^ and $ only around an expression")
    if anchored and not (begins and ends):
        raise GrammarRefused("xgrammar supports 'pattern' only as ^...$")
    # In `^a|b$` each anchor belongs to one alternative, and both would be dropped.
    if (begins or ends) and _has_outer_choice(inner):
        raise GrammarRefused("xgrammar supports ^ and $ beside | only as ^(...|...)$")
    return "".join("[^\\n]" if part == "." else part for part in inner)


def check_counts(text: str) -> None:
    """Refuse nested repetitions with large counts, which XGrammar expands, for minutes.

    Raises:
        GrammarRefused: the product of all counts of a text is too large.
    """
    product = 1
    for least, most in _COUNT.findall(text):
        # Nine digits are far beyond the limit, and the text may have thousands.
        product *= max(1, int((most or least)[:9]))
        if product > _MOST_COUNTS:
            raise GrammarRefused(
                f"xgrammar allows counts whose product is {_MOST_COUNTS:,}; make them smaller"
            )


def _has_outer_choice(parts: list[str]) -> bool:
    depth = 0
    for part in parts:
        depth += (part == "(") - (part == ")")
        if part == "|" and depth == 0:
            return True
    return False
