"""Map of KV pages, a character per cell, by state or by tenant; redraws changed lines only."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

STATES = {
    ".": ("·", "free", Style(dim=True)),
    "c": ("░", "cached", Style(color="blue")),
    "a": ("█", "active", Style(color="green")),
    "s": ("▓", "shared", Style(color="yellow")),
    "p": ("◆", "pinned", Style(color="magenta", bold=True)),
}
"""Glyph, name and style of a cell by its letter."""

COLORS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NO_OWNER = ("·", Style(dim=True))
_UNKNOWN = ("?", Style(bold=True))


def letter(tenant: int) -> str:
    """Return the letter of a tenant on the map by its index, modulo 26."""
    return _LETTERS[tenant % len(_LETTERS)]


def color(tenant: int) -> str:
    """Return the color of a tenant; letter and color are unique for the first 104 tenants."""
    return COLORS[tenant % len(COLORS)]


def by_state(cells: str, owners: str) -> list[tuple[str, Style]]:
    """Return glyph and style of each cell by state."""
    looks = {cell: (glyph, style) for cell, (glyph, _, style) in STATES.items()}
    return [looks.get(cell, _UNKNOWN) for cell in cells]


def by_tenant(cells: str, owners: str) -> list[tuple[str, Style]]:
    """Return glyph and style of each cell by tenant: a capital if in use, lower case if cached."""
    looks: dict[tuple[str, str], tuple[str, Style]] = {}
    # Once per distinct pair: maps have thousands of cells.
    for pair in set(zip(cells, owners, strict=False)):
        cell, owner = pair
        index = ord(owner) - 48
        if owner == " " or index < 0:
            looks[pair] = _NO_OWNER if cell == "." else _UNKNOWN
        elif cell == "c":
            looks[pair] = letter(index).lower(), Style(color=color(index), dim=True)
        else:
            looks[pair] = letter(index), Style(color=color(index), bold=True)
    return [looks[pair] for pair in zip(cells, owners, strict=False)]


class HeatMap(ScrollView, can_focus=True):
    """Scrollable map of cells."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._looks: list[tuple[str, Style]] = []
        self._lines: list[list[tuple[str, Style]]] = []

    def set_cells(self, looks: Sequence[tuple[str, Style]]) -> None:
        """Show cells, given as glyphs and styles."""
        self._looks = list(looks)
        self._lay_out()

    def on_resize(self) -> None:
        """Lay out the cells for the new width."""
        self._lay_out()

    def _lay_out(self) -> None:
        width = max(1, self.scrollable_content_region.width)
        before = self._lines
        self._lines = [self._looks[i : i + width] for i in range(0, len(self._looks), width)]
        size = Size(width, len(self._lines))
        # Another shape: every line may be elsewhere.
        if size != self.virtual_size or len(before) != len(self._lines):
            self.virtual_size = size
            self.refresh()
            return
        for y, (old, new) in enumerate(zip(before, self._lines, strict=True)):
            if old != new:
                self.refresh_line(y)

    def render_line(self, y: int) -> Strip:
        """Render a line of cells."""
        place = y + self.scroll_offset.y
        background = self.rich_style
        if place >= len(self._lines):
            return Strip.blank(self.size.width, background)
        line = self._lines[place]
        runs = (
            Segment("".join(glyph for glyph, _ in run), background + style)
            for style, run in groupby(line, key=lambda look: look[1])
        )
        return Strip(runs, len(line)).extend_cell_length(self.size.width, background)
