"""Spans of time as OpenAI's headers write them."""

from __future__ import annotations


def go_duration(seconds: float) -> str:
    """As OpenAI writes them, after Go's ``time.Duration``: ``12ms``, ``1.5s``, ``6m0s``."""
    if seconds < 1:
        return f"{round(1000 * seconds)}ms" if seconds > 0 else "0s"
    minutes, rest = divmod(round(seconds, 3), 60)
    hours, minutes = divmod(int(minutes), 60)
    shown = f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{shown}"
    return f"{minutes}m{shown}" if minutes else shown
