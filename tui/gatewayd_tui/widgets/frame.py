"""Frame of every screen: status line, screen list and error banner."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.widgets import Static

from gatewayd_tui.figures import duration, percent
from gatewayd_tui.state import ConsoleState, model_label

GLYPHS = {
    "starting": "◌",
    "ready": "●",
    "paused": "‖",
    "draining": "▽",
    "failed": "✖",
    "unloaded": "○",
    "asleep": "○",
}
_STYLES = {"ready": "green", "failed": "bold red"}


class StatusLine(Static):
    """Status of the daemon in one line."""

    def show(self, state: ConsoleState, marks: Sequence[str]) -> None:
        """Update the line; ``marks`` is the console's own status."""
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(" gatewayd ", "bold")
        if state.snapshot is not None:
            daemon, last = state.snapshot.daemon, state.history[-1]
            word = "lost" if state.lost else daemon.state
            style = "bold red" if state.lost else _STYLES.get(word, "bold yellow")
            text.append(f"{GLYPHS.get(word, '✖')} {word}", style)
            text.append(f"  {last.running} run {last.waiting} wait  kv {percent(last.kv_share)}")
            text.append(f"  up {duration(daemon.uptime_seconds)}  {model_label(daemon)}")
            if daemon.troubles:
                text.append(f"  ✖ {len(daemon.troubles)} problems", "bold red")
        for mark in marks:
            text.append(f"  [{mark}]", "bold reverse")
        self.update(text)


class ScreenLine(Static):
    """List of screens with their keys; the open one is highlighted."""

    def show(self, screens: Sequence[tuple[str, str]], open_key: str, width: int) -> None:
        """Update the list; ``screens`` are keys and titles."""
        others = [title for key, title in screens if key != open_key]
        room = width - sum(len(key) + 2 for key, _ in screens)
        room -= sum(len(title) for key, title in screens if key == open_key)
        cut = max(map(len, others), default=0)
        # Titles are cut to the same length until the line fits; keys are always whole.
        while cut > 1 and sum(min(cut, len(title)) for title in others) > room:
            cut -= 1
        text = Text(no_wrap=True, overflow="ellipsis")
        for key, title in screens:
            is_open = key == open_key
            text.append(f" {key}", "bold")
            shown = title if is_open else title[:cut]
            text.append(f"▸{shown}" if is_open else f" {shown}", "bold reverse" if is_open else "")
        self.update(text)


class Banner(Static):
    """Error banner, hidden while there is no error."""

    def show(self, trouble: str | None) -> None:
        """Show an error, or hide the banner."""
        self.display = trouble is not None
        if trouble is not None:
            self.update(Text(f"✖ {trouble}"))
