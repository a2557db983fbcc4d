"""Parsing of durations on the command line: ``90s``, ``10m``, ``2h``, ``1d``."""

from __future__ import annotations

import re
from typing import NoReturn

from gatewayd.cli.common import fail

_MOST_DAYS = 7
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds_of(option: str, text: str) -> float:
    """Parse a duration above 0 and of at most a week, or exit with an error."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if found is None or not float(found[1]):
        _refuse(option, text)
    seconds = float(found[1]) * _UNITS[found[2]]
    if seconds > _MOST_DAYS * _UNITS["d"]:
        fail(f"{option} {text} is too long: at most {_MOST_DAYS}d", 2)
    return seconds


def whole_seconds_of(option: str, text: str) -> int:
    """Parse a duration of whole seconds, 0 or more and without limit, or exit with an error."""
    found = re.fullmatch(r"(\d{1,9})([smhd]?)", text)
    if found is None:
        _refuse(option, text)
    return int(found[1]) * _UNITS[found[2]]


def _refuse(option: str, text: str) -> NoReturn:
    fail(f"{option} {text} is not a time such as 90s, 10m, 2h or 1d", 2)
