"""Spans of time as they are typed: ``90s``, ``10m``, ``2h``, ``1d``."""

from __future__ import annotations

import re

from gatewayd.cli.common import fail

_MOST_DAYS = 7
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(option: str, text: str) -> float:
    """Seconds, above 0 and at most a week; whatever else ends the command."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if found is None or not float(found[1]):
        fail(f"{option} {text} is not a time such as 90s, 10m, 2h or 1d", 2)
    seconds = float(found[1]) * _UNITS[found[2]]
    if seconds > _MOST_DAYS * _UNITS["d"]:
        fail(f"{option} {text} is too long: at most {_MOST_DAYS}d", 2)
    return seconds
