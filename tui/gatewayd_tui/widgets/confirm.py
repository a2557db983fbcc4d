"""Confirmation dialog for destructive changes."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

_NAMED = 10


class Confirm(ModalScreen[bool]):
    """Confirmation dialog; anything but yes means no.

    Args:
        titles: of the changes, each with its object.
    """

    BINDINGS = [
        Binding("y", "answer(True)", "Yes", id="confirm.yes"),
        Binding("n,escape,q", "answer(False)", "No", id="confirm.no"),
    ]

    def __init__(self, titles: Sequence[str]) -> None:
        super().__init__()
        self._titles = titles

    def compose(self) -> ComposeResult:
        """Compose the question and two buttons."""
        lines = [f"• {title}" for title in self._titles[:_NAMED]]
        more = len(self._titles) - _NAMED
        if more > 0:
            lines.append(f"… and {more} more")
        with VerticalScroll(classes="dialog"):
            yield Static("⚠ Are you sure?", classes="dialog-title")
            yield Static(Content("\n".join(lines)), id="question")
            with Horizontal(classes="dialog-buttons"):
                yield Button("No (n)", id="no", variant="default")
                yield Button("Yes (y)", id="yes", variant="error")

    def on_mount(self) -> None:
        """Focus the button for no, the default of enter."""
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Return the answer of a button."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        """Return the answer of a key."""
        self.dismiss(yes)
