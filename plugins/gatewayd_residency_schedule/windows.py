"""Windows of time in a week."""

from __future__ import annotations

import time
from typing import NamedTuple

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY = 24 * 60


class Window(NamedTuple):
    """A daily window of one model.

    Attributes:
        model: its name.
        begin: minute of the day.
        end: minute of the day; before or at ``begin``, it is that of the next day.
        days: days of the week on which it begins, Monday is 0.
    """

    model: str
    begin: int
    end: int
    days: frozenset[int]

    def contains(self, unix: float) -> bool:
        """Whether a time is in the window, in the time zone of the machine."""
        now = time.localtime(unix)
        minute = now.tm_hour * 60 + now.tm_min
        if self.begin < self.end:
            return now.tm_wday in self.days and self.begin <= minute < self.end
        # Past midnight: it began on this day, or on the day before.
        is_today = now.tm_wday in self.days and minute >= self.begin
        return is_today or ((now.tm_wday - 1) % 7 in self.days and minute < self.end)


def parse_window(text: str) -> Window:
    """Parse a window such as ``large 08:00-18:00 mon-fri``.

    Raises:
        ValueError: it has another form.
    """
    parts = text.split()
    try:
        model, hours = parts[0], parts[1]
        days = parts[2] if len(parts) > 2 else "mon-sun"
        if len(parts) > 3:
            raise ValueError(text)
        begin, end = map(_minute, hours.split("-"))
        return Window(model, begin, end, _days_of(days))
    except (IndexError, ValueError):
        raise ValueError(
            f"{text[:100]!r} is no window: write MODEL HH:MM-HH:MM, and perhaps days such as"
            " mon-fri or sat"
        ) from None


def _minute(text: str) -> int:
    hour, minute = text.split(":")
    found = int(hour) * 60 + int(minute)
    if not (0 <= int(minute) < 60 and 0 <= found <= _DAY):
        raise ValueError(text)
    return found


def _days_of(text: str) -> frozenset[int]:
    first, _, last = text.partition("-")
    begin, end = _DAYS.index(first), _DAYS.index(last or first)
    return frozenset((begin + at) % 7 for at in range((end - begin) % 7 + 1))
