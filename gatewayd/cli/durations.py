"""Spans of time as they are typed: ``90s``, ``10m``, ``2h``, ``1d``."""

from __future__ import annotations

import re
from typing import NoReturn

from gatewayd.cli.common import fail

_MOST_DAYS = 7
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds_of(option: str, text: str) -> float:
    """Seconds, above 0 and at most a week; whatever else ends the command."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if found is None or not float(found[1]):
        _refuse(option, text)
    seconds = float(found[1]) * _UNITS[found[2]]
    if seconds > _MOST_DAYS * _UNITS["d"]:
        fail(f"{option} {text} is too long: at most {_MOST_DAYS}d", 2)
    return seconds


def whole_seconds_of(option: str, text: str) -> int:
    """Whole seconds, 0 and years included; whatever else ends the command."""
    found = re.fullmatch(r"(\d{1,9})([smhd]?)", text)
    if found is None:
        _refuse(option, text)
    return int(found[1]) * _UNITS[found[2]]


def _refuse(option: str, text: str) -> NoReturn:
    fail(f"{option} {text} is not a time such as 90s, 10m, 2h or 1d", 2)
