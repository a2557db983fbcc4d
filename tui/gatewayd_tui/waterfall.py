"""Latency breakdown of a request as text: bars over time, causes, Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.text import Text

from gatewayd.wire.cause_labels import label as named
from gatewayd.wire.requests import Explanation
from gatewayd.wire.route_lines import route_lines
from gatewayd_tui.figures import count, millis

_LABEL = 11
_STYLES = {
    "prefill": "green",
    "recompute": "yellow",
    "decode": "cyan",
    "crowd": "yellow",
    "preempted": "bold red",
    "plugin": "magenta",
}
"""Styles of bars by cause; other causes are waits, or the gateway's own work."""


def render_breakdown(found: Explanation, width: int, usual: str = "") -> Text:
    """Render a request: its facts, its verdict, a bar for each part, and the causes."""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{found.id}", "bold")
    facts = [found.endpoint, found.model, found.tenant or "-", found.priority, found.outcome]
    text.append("".join(f"  {fact}" for fact in facts if fact) + "\n")
    text.append(
        f"{count(found.prompt_tokens)} prompt tokens ({count(found.cached_tokens)} cached), "
        f"{count(found.completion_tokens)} generated, {found.preemptions} preemptions\n"
        f"ttft {millis(found.ttft_ms)}  per token {millis(found.tpot_ms)}{usual}\n"
    )
    text.append(f"{found.verdict}\n\n", "bold")
    label = max(
        [
            _LABEL,
            *(len(named(part.cause, part.strategy)) + 1 for part in found.parts),
            *(len(named(cause)) + 1 for cause in found.causes),
        ]
    )
    # At most a third of the width, which leaves room for the bars.
    label = min(label, max(_LABEL, width // 3))
    room = max(10, width - label - 22)
    for part in found.parts:
        at = "" if part.begin_ms is None else millis(part.begin_ms)
        name = named(part.cause, part.strategy)[: label - 1]
        text.append(f"{name:<{label}}{at:>8} {millis(part.ms):>8} |")
        text.append(_bar(part.begin_ms, part.ms, found.ms, room), _STYLES.get(part.cause, ""))
        text.append("|\n")
    text.append(f"{'total':<{label}}{'':>8} {millis(found.ms):>8}\n\n")
    for cause, ms in found.causes.items():
        share = ms / found.ms if found.ms > 0 else 0.0
        text.append(f"{named(cause):<{label}}{100 * share:>7.1f}% {millis(ms):>8}\n", "dim")
    if found.route is not None:
        text.append("\n" + "\n".join(route_lines(found.route)) + "\n")
    return text


def markdown(found: Explanation) -> str:
    """Render the breakdown as a Markdown table."""
    lines = [
        f"**{found.id}** {found.endpoint}{found.model and f', {found.model}'}, {found.priority}, "
        f"{found.outcome}, "
        f"{found.prompt_tokens} prompt tokens ({found.cached_tokens} cached), "
        f"{found.completion_tokens} generated, {found.preemptions} preemptions",
        "",
        "| part | start | duration |",
        "| --- | ---: | ---: |",
    ]
    for part in found.parts:
        at = "" if part.begin_ms is None else f"{part.begin_ms:.1f} ms"
        lines.append(f"| {named(part.cause, part.strategy)} | {at} | {part.ms:.1f} ms |")
    lines += [f"| total | | {found.ms:.1f} ms |", "", found.verdict, ""]
    if found.route is not None:
        lines += ["```text", *route_lines(found.route), "```", ""]
    return "\n".join(lines)


def relative_to_median(ms: float, others: Sequence[float]) -> str:
    """Compare a request with the median of its class; empty if there are too few."""
    # Fewer do not show what is usual.
    if len(others) < 3 or median(others) <= 0:
        return ""
    usual = median(others)
    return f"  {ms / usual:.1f}x the median of its class, {millis(usual)}"


def _bar(begin: float | None, ms: float, total: float, width: int) -> str:
    """Return the bar of a part within the whole; dots if it is spread over other parts."""
    if total <= 0:
        return " " * width
    # At least one character, so that no part is invisible.
    length = min(width, max(1, round(width * ms / total)))
    if begin is None:
        return ("·" * length).ljust(width)
    start = min(width - length, round(width * begin / total))
    return (" " * start + "█" * length).ljust(width)
