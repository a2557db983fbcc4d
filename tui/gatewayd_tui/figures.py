"""Number formats: short, and of constant width."""

from __future__ import annotations


def count(value: float | None) -> str:
    """Format a count: ``987``, ``12.3k``, ``4.56M``; a dash if unknown."""
    if value is None:
        return "-"
    # The next unit begins where three digits of the smaller one would round up to 1000.
    for least, size, letter in ((999.5e6, 1e9, "G"), (999.5e3, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"


def millis(value: float | None) -> str:
    """Format milliseconds: ``3.2ms``, ``870ms``, ``12.5s``, ``2h05m``; a dash if unknown."""
    if value is None:
        return "-"
    sign, value = ("-" if value < 0 else ""), abs(value)
    if value < 9.95:
        return f"{sign}{value:.1f}ms"
    if value < 999.5:
        return f"{sign}{value:.0f}ms"
    if value < 59_950:
        return f"{sign}{value / 1000:.1f}s"
    return sign + duration(value / 1000)


def duration(seconds: float) -> str:
    """Format seconds: ``45s``, ``4m10s``, ``2h05m``, ``3d04h``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"


def size(value: float) -> str:
    """Format bytes: ``512 B``, ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def percent(value: float | None) -> str:
    """Format a share of one: ``37%``, ``0.4%``; a dash if unknown."""
    if value is None:
        return "-"
    return f"{100 * value:.1f}%" if 0 < abs(value) < 0.0995 else f"{100 * value:.0f}%"


def bar(share: float, width: int) -> str:
    """Draw a horizontal bar that is full at 1."""
    full = round(max(0.0, min(1.0, share)) * width)
    return "█" * full + "░" * (width - full)


_LEVELS = " ▁▂▃▄▅▆▇█"


def sparkline(values: list[float], width: int, most: float | None = None) -> str:
    """Draw the last ``width`` values as a sparkline, scaled to ``most`` or the largest."""
    shown = values[-width:]
    top = most or max(shown, default=0.0)
    levels = len(_LEVELS) - 1
    if top <= 0:
        return ("▁" * len(shown)).rjust(width)
    picks = (_LEVELS[max(1, min(levels, round(levels * value / top)))] for value in shown)
    return "".join(picks).rjust(width)
