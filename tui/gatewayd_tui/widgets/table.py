"""Table that is given all rows each time and updates only the cells that differ.

Rows have keys, so that cursor and marks survive insertions and removals. A new row reuses the slot
of a removed one, because adding and removing rows would lay out the whole table again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from rich.text import Text
from textual import events
from textual.binding import Binding
from textual.content import Content
from textual.widgets import DataTable

RowT = TypeVar("RowT")
Cell = str | tuple[str, str]
"""Text, or text and its style. Never markup: it may be untrusted."""

WIDE = 110
"""Terminal width from which tables show all columns."""
SENTENCES = 120
"""Terminal width from which cells show sentences; below, a column may have a short form."""
_GUTTER = "gutter"
_MARK = "▶"


@dataclass(frozen=True, slots=True)
class Column(Generic[RowT]):
    """Column of a table.

    Attributes:
        title: heading.
        width: in characters; 0 takes the rest.
        cell: returns the content of a row.
        by: sort key; None if the column cannot be sorted.
        is_number: right-aligned, and sorted in descending order.
        is_wide: only shown in wide terminals.
        short: replaces ``cell`` in narrow terminals.
    """

    title: str
    width: int
    cell: Callable[[RowT], Cell]
    by: Callable[[RowT], Any] | None = None
    is_number: bool = False
    is_wide: bool = False
    short: Callable[[RowT], Cell] | None = None


class LiveTable(DataTable[Text], Generic[RowT]):
    """Table with incremental updates, filter, marks and sorting.

    Args:
        columns: from the left.
        key_of: returns the key of a row; duplicates get a number appended.
        id: of the widget.
    """

    BINDINGS = [
        Binding("j", "cursor_down", "Down", show=False, id="table.down"),
        Binding("k", "cursor_up", "Up", show=False, id="table.up"),
        Binding("g", "scroll_top", "First row", show=False, id="table.first"),
        Binding("G", "scroll_bottom", "Last row", show=False, id="table.last"),
        Binding("space", "mark", "Mark", show=False, id="table.mark"),
        Binding("s", "sort_next", "Sort by the next column", show=False, id="table.sort"),
        Binding("S", "sort_turn", "Reverse the sort order", show=False, id="table.turn"),
    ]

    def __init__(
        self,
        columns: Sequence[Column[RowT]],
        key_of: Callable[[RowT], str],
        *,
        id: str | None = None,
    ) -> None:
        super().__init__(id=id, cursor_type="row", cell_padding=0)
        self.filter = ""
        self.marked: set[str] = set()
        self._all = columns
        self._columns: list[tuple[Column[RowT], int]] = []
        self.key_of = key_of
        self._rows: Sequence[RowT] = ()
        self._order: list[str] = []
        self._by_key: dict[str, RowT] = {}
        self._slots: dict[str, str] = {}
        self._cells: dict[str, list[Cell]] = {}
        self._made = 0
        self._sorted: int | None = None
        self._is_turned = False

    def set_rows(self, rows: Sequence[RowT]) -> None:
        """Replace the rows; only cells that differ are updated."""
        self._rows = rows
        # Before the first resize there are no columns yet; `on_resize` shows the rows.
        if self._columns:
            self._renew()

    def set_heading(self, *parts: str) -> None:
        """Set the heading from the parts that are not empty."""
        self.border_title = Content(" · ".join(filter(None, parts)))

    def current(self) -> RowT | None:
        """Return the row under the cursor; None if the table is empty."""
        key = self._current_key()
        return None if key is None else self._by_key[key]

    def chosen(self) -> list[RowT]:
        """Return the visible marked rows, or the one under the cursor if none is marked."""
        if self.marked:
            return [self._by_key[key] for key in self._order if key in self.marked]
        current = self.current()
        return [] if current is None else [current]

    def shown(self) -> list[RowT]:
        """Return the rows that pass the filter, in order."""
        return [self._by_key[key] for key in self._order]

    def go_to(self, key: str) -> bool:
        """Move the cursor to a row; False if it is not shown."""
        if key not in self._order:
            return False
        self.move_cursor(row=self._order.index(key))
        return True

    def set_filter(self, text: str) -> None:
        """Show only rows that contain every word, and no word prefixed by ``!``."""
        self.filter = text
        self.set_rows(self._rows)

    def action_mark(self) -> None:
        """Toggle the mark of the row under the cursor, and move down."""
        key = self._current_key()
        if key is not None:
            self.marked ^= {key}
            self._renew()
            self.action_cursor_down()

    def action_sort_next(self) -> None:
        """Sort by the next sortable column; after the last, restore the original order."""
        can = [i for i, (column, _) in enumerate(self._columns) if column.by is not None]
        later = [i for i in can if self._sorted is None or i > self._sorted]
        self._sorted = later[0] if later else None
        self._is_turned = False
        self._lay_out()

    def action_sort_turn(self) -> None:
        """Reverse the sort order."""
        self._is_turned = not self._is_turned
        self._lay_out()

    def on_resize(self, event: events.Resize) -> None:
        """Choose columns and widths for the new width."""
        width = self.app.size.width
        shown = [
            replace(c, cell=c.short) if c.short is not None and width < SENTENCES else c
            for c in self._all
            if not c.is_wide or width >= WIDE
        ]
        # Reserves space for the scroll bar.
        room = event.size.width - 3 - sum(c.width + 1 for c in shown)
        rest = max(12, room)
        columns = [(column, column.width or rest) for column in shown]
        if columns != self._columns:
            if len(columns) != len(self._columns):
                self._sorted = None
            self._columns = columns
            self._lay_out()

    def _lay_out(self) -> None:
        """Rebuild columns and rows, when columns or sorting change; not for new data."""
        # Clearing the table moves its cursor to the top.
        key = self._current_key()
        self.clear(columns=True)
        self._order, self._by_key, self._slots, self._cells = [], {}, {}, {}
        self.add_column("", key=_GUTTER, width=2)
        for index, (column, width) in enumerate(self._columns):
            arrow = ("▲" if self._is_turned else "▼") if index == self._sorted else ""
            label = Text((column.title + arrow)[:width])
            if column.is_number:
                label.align("right", width)
            self.add_column(label, key=str(index), width=width + 1)
        self._renew()
        if key is not None:
            self.go_to(key)

    def _renew(self) -> None:
        """Update the shown rows to the wanted ones."""
        at, under = self.cursor_row, self._current_key()
        wanted = self._wanted()
        # Slots whose rows are gone, for rows that are new.
        lent = [slot for key, slot in self._slots.items() if key not in wanted]
        self._slots = {key: slot for key, slot in self._slots.items() if key in wanted}
        for key, (_, cells) in wanted.items():
            slot = self._slots.get(key) or (lent.pop() if lent else self._add())
            self._slots[key] = slot
            self._write(slot, [_MARK if key in self.marked else "", *cells])
        for slot in lent:
            self.remove_row(slot)
            del self._cells[slot]
        order = list(wanted)
        slots = [self._slots[key] for key in order]
        if slots != [row.key.value for row in self.ordered_rows]:
            # DataTable sorts by cells only: the gutter has a distinct object for each row.
            ranks = {id(self.get_cell(slot, _GUTTER)): rank for rank, slot in enumerate(slots)}
            self.sort(_GUTTER, key=lambda cell: ranks[id(cell)])
        self._order = order
        self._by_key = {key: row for key, (row, _) in wanted.items()}
        # Marks of rows that a filter hides stay; those of rows that are gone do not.
        self.marked &= set(map(self.key_of, self._rows)) | wanted.keys()
        if under is not None and order:
            # The cursor follows its row, or stays where that one was.
            row = order.index(under) if under in wanted else min(at, len(order) - 1)
            if row != self.cursor_row:
                self.move_cursor(row=row)
        elif order and self.cursor_row < 0:
            self.move_cursor(row=0)

    def _wanted(self) -> dict[str, tuple[RowT, list[Cell]]]:
        """Return rows and cells by key, in order, without filtered ones."""
        rows = list(self._rows)
        if self._sorted is not None:
            column = self._columns[self._sorted][0]
            assert column.by is not None  # noqa: S101 - only sortable columns are chosen
            rows.sort(key=column.by, reverse=column.is_number != self._is_turned)
        elif self._is_turned:
            rows.reverse()
        found: dict[str, tuple[RowT, list[Cell]]] = {}
        seen: dict[str, int] = {}
        for row in rows:
            key = self.key_of(row)
            seen[key] = seen.get(key, 0) + 1
            cells = [column.cell(row) for column, _ in self._columns]
            if matches(self.filter, cells):
                found[key if seen[key] == 1 else f"{key} ({seen[key]})"] = (row, cells)
        return found

    def _add(self) -> str:
        self._made += 1
        slot = str(self._made)
        self.add_row(*(Text() for _ in range(len(self._columns) + 1)), key=slot)
        self._cells[slot] = []
        return slot

    def _write(self, slot: str, cells: list[Cell]) -> None:
        """Update the cells of a row that differ."""
        before = self._cells[slot]
        for index, cell in enumerate(cells):
            if before and before[index] == cell:
                continue
            if index == 0:
                self.update_cell(slot, _GUTTER, Text(plain(cell)))
            else:
                column, width = self._columns[index - 1]
                self.update_cell(slot, str(index - 1), _text(cell, column, width))
        self._cells[slot] = cells

    def _current_key(self) -> str | None:
        at = self.cursor_row  # -1 if the table is empty
        return self._order[at] if 0 <= at < len(self._order) else None


def matches(wanted: str, cells: Sequence[Cell]) -> bool:
    """Whether the cells contain every word, and none that is prefixed by ``!``."""
    text = " ".join(map(plain, cells)).lower()
    words = wanted.lower().split()
    return all(
        (word[1:] not in text) if word[0] == "!" and word[1:] else word in text for word in words
    )


def plain(cell: Cell) -> str:
    """Return a cell's text without its style."""
    return cell if isinstance(cell, str) else cell[0]


def _text(cell: Cell, column: Column[Any], width: int) -> Text:
    text = Text(cell) if isinstance(cell, str) else Text(cell[0], cell[1])
    text.truncate(width, overflow="ellipsis")
    if column.is_number:
        text.align("right", width)
    return text
