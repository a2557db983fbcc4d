"""Regular expressions as XGrammar reads them.

For XGrammar an expression is the whole text, ``^`` and ``$`` mean nothing wherever they stand, and
a dot is any letter.
"""

from __future__ import annotations

import re

from gatewayd_hooks.guiding import GrammarRefused

_COUNT = re.compile(r"\{\s*+(\d++)\s*+(?:,\s*+(\d*+)\s*+)?\}")
_MOST_COUNTS = 1_000_000
# A class that does not end is read to the end, once: XGrammar refuses it.
_PART = re.compile(r"\\.|\[\^?(?:\\.|[^\]\\])*+\]?|.", re.DOTALL)


def whole(expression: str, *, anchored: bool = False) -> str:
    """The same without anchors, and with dots that are no line ends.

    Args:
        expression: of the request.
        anchored: whether it is looked for in a text, and so must say where that begins and ends.

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
    if (begins or ends) and _has_outer_choice(inner):
        raise GrammarRefused("xgrammar supports ^ and $ beside | only as ^(...|...)$")
    return "".join("[^\\n]" if part == "." else part for part in inner)


def check_counts(text: str) -> None:
    """Refuse repetitions of repetitions: XGrammar follows each of them, for minutes.

    Raises:
        GrammarRefused: all counts of a text together are too large.
    """
    product = 1
    for least, most in _COUNT.findall(text):
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
