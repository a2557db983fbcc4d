"""Spans of time on the command line: ``90s``, ``10m``, ``2h``, ``1d``."""

from __future__ import annotations

import re

from gatewayd.cli.common import fail

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds_of(text: str, option: str) -> int:
    """Seconds of a span, or an end with what is wrong with it."""
    found = re.fullmatch(r"(\d{1,9})([smhd]?)", text)
    if found is None:
        fail(f"{option} {text} is not a time such as 90s, 10m, 2h or 1d", 2)
    return int(found[1]) * _UNITS[found[2]]
