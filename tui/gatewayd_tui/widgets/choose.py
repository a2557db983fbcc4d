"""Dialog to choose one of several options."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static


class Choose(ModalScreen[str | None]):
    """Choice dialog; returns one of the options, or None.

    Args:
        title: of the dialog.
        options: to choose from.
    """

    BINDINGS = [
        Binding("escape,q", "leave", "Back", id="choose.back"),
        Binding("j", "down", "Down", show=False, id="choose.down"),
        Binding("k", "up", "Up", show=False, id="choose.up"),
    ]

    def __init__(self, title: str, options: Sequence[str]) -> None:
        super().__init__()
        self._title_text = title
        self._options_offered = options

    def compose(self) -> ComposeResult:
        """Compose title and options."""
        with Vertical(classes="dialog"):
            yield Static(Content(self._title_text), classes="dialog-title")
            yield OptionList(*map(Content, self._options_offered))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Return the selected option."""
        self.dismiss(self._options_offered[event.option_index])

    def action_leave(self) -> None:
        """Return None."""
        self.dismiss(None)

    def action_down(self) -> None:
        """Move to the next option."""
        self.query_one(OptionList).action_cursor_down()

    def action_up(self) -> None:
        """Move to the previous option."""
        self.query_one(OptionList).action_cursor_up()
