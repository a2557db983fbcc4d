"""Takes from JSON what would drive a terminal: control characters, and those that turn text around.

A model's file, a plugin's error and a recording from elsewhere are strangers' texts, and a terminal
obeys whatever is written to it. It is done once, on all that comes, before any screen has it.
"""

from __future__ import annotations

import re

_SHOWN = re.compile(
    rb"(?P<kept>"
    rb'"owners":\s*"(?:[^"\\]|\\.)*"'  # numbers as characters, never written to a terminal
    rb"|\\(?![bfnrtu])."  # a backslash or a quote, say
    rb"|\\u(?!00[01]|007[fF]|00[89]|200[e-fE-F]|202[a-eA-E]|206[6-9])"
    rb")"
    rb"|\\u[0-9a-fA-F]{4}|\\[bfnrt]"
    rb"|\x7f|\xc2[\x80-\x9f]|\xe2\x80[\x8e\x8f\xaa-\xae]|\xe2\x81[\xa6-\xa9]"
)
_LINES = (rb"\n", rb"\t")


def cleaned(content: bytes, *, keeps_lines: bool = False) -> bytes:
    """The same JSON with a space for each such character in its texts.

    Args:
        content: JSON.
        keeps_lines: leave newlines and tabs.
    """

    def instead(found: re.Match[bytes]) -> bytes:
        if found["kept"] is not None or (keeps_lines and found[0] in _LINES):
            return found[0]
        return b" "

    return _SHOWN.sub(instead, content)
