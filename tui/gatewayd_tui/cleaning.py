"""Removal of control and bidirectional-override characters from JSON.

Model files, plugin errors and recordings are untrusted text, and control characters would be
interpreted by the terminal. All input is sanitized once, before any screen receives it.
"""

from __future__ import annotations

import re

# On encoded JSON, before it is decoded: escapes as well as raw bytes. The group `kept` comes
# first and consumes an escaped backslash whole, so that what follows is no escape.
_SHOWN = re.compile(
    rb"(?P<kept>"
    rb'"owners":\s*"(?:[^"\\]|\\.)*"'  # numbers encoded as characters, never written to a terminal
    rb"|\\(?![bfnrtu])."  # such as a backslash or a quote
    rb"|\\u(?!00[01]|007[fF]|00[89]|200[e-fE-F]|202[a-eA-E]|206[6-9])"
    rb")"
    rb"|\\u[0-9a-fA-F]{4}|\\[bfnrt]"
    rb"|\x7f|\xc2[\x80-\x9f]|\xe2\x80[\x8e\x8f\xaa-\xae]|\xe2\x81[\xa6-\xa9]"
)
_LINES = (rb"\n", rb"\t")


def strip_controls(content: bytes, *, keeps_lines: bool = False) -> bytes:
    """Replace each control or override character in the strings of JSON by a space.

    Args:
        content: JSON.
        keeps_lines: preserve newlines and tabs.
    """

    def replacement(found: re.Match[bytes]) -> bytes:
        if found["kept"] is not None or (keeps_lines and found[0] in _LINES):
            return found[0]
        return b" "

    return _SHOWN.sub(replacement, content)
