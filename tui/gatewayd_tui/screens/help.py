"""Dialog with the keys of a screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static


class HelpScreen(ModalScreen[None]):
    """List of keys, closed by a key.

    Args:
        groups: headings with bindings.
    """

    BINDINGS = [Binding("escape,q,question_mark,f1", "leave", "Back", id="help.back")]

    def __init__(self, groups: Sequence[tuple[str, Sequence[Binding]]]) -> None:
        super().__init__()
        self._groups = groups

    def compose(self) -> ComposeResult:
        """Compose a table of all groups."""
        table = Table.grid(padding=(0, 2))
        for title, bindings in self._groups:
            table.add_row("", Text(title, "bold"))
            for each in bindings:
                what = f"{each.description}: {each.tooltip}" if each.tooltip else each.description
                table.add_row(self.keys_of(each), what)
        with VerticalScroll(classes="dialog"):
            yield Static("Keys", classes="dialog-title")
            yield Static(table)

    def keys_of(self, binding: Binding) -> str:
        """Return the display names of a binding's keys."""
        return binding.key_display or " ".join(
            self.app.get_key_display(Binding(key, "")) for key in binding.key.split(",")
        )

    def action_leave(self) -> None:
        """Close the dialog."""
        self.dismiss()
