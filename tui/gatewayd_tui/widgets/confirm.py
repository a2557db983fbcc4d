"""A dialog that names what is about to be destroyed."""

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
    """Asks; what is not answered with yes is a no.

    Args:
        titles: what would be done, each with its object.
    """

    BINDINGS = [
        Binding("y", "answer(True)", "Yes", id="confirm.yes"),
        Binding("n,escape,q", "answer(False)", "No", id="confirm.no"),
    ]

    def __init__(self, titles: Sequence[str]) -> None:
        super().__init__()
        self._titles = titles

    def compose(self) -> ComposeResult:
        """The question, and two buttons."""
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
        """Whoever only presses enter means no."""
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """A button is an answer."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        """So is a key."""
        self.dismiss(yes)
