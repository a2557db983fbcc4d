"""Periods of budgets, in UTC: a day, a month, or all time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

Period = Literal["day", "month"]
_LONGEST = timedelta(days=32)
"""Beyond a month, and within the next."""


def begin_of(period: str | None, at: float) -> int:
    """Unix time of the begin of the period that contains ``at``; 0 for all time."""
    return 0 if period is None else int(_begin(period, at).timestamp())


def end_of(period: str, at: float) -> int:
    """Unix time at which the following period begins."""
    begin = _begin(period, at)
    if period == "day":
        return int((begin + timedelta(days=1)).timestamp())
    return int((begin + _LONGEST).replace(day=1).timestamp())


def _begin(period: str, at: float) -> datetime:
    day = datetime.fromtimestamp(at, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day if period == "day" else day.replace(day=1)
