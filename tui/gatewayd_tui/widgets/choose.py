"""A dialog that offers a few words."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static


class Choose(ModalScreen[str | None]):
    """Answers with one of the words, or None.

    Args:
        title: what for.
        words: to choose from.
    """

    BINDINGS = [
        Binding("escape,q", "leave", "Back", id="choose.back"),
        Binding("j", "down", "Down", show=False, id="choose.down"),
        Binding("k", "up", "Up", show=False, id="choose.up"),
    ]

    def __init__(self, title: str, words: Sequence[str]) -> None:
        super().__init__()
        self._title_text = title
        self._words = words

    def compose(self) -> ComposeResult:
        """The words under the title."""
        with Vertical(classes="dialog"):
            yield Static(Content(self._title_text), classes="dialog-title")
            yield OptionList(*map(Content, self._words))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """That one."""
        self.dismiss(self._words[event.option_index])

    def action_leave(self) -> None:
        """None of them."""
        self.dismiss(None)

    def action_down(self) -> None:
        """The next."""
        self.query_one(OptionList).action_cursor_down()

    def action_up(self) -> None:
        """The one before."""
        self.query_one(OptionList).action_cursor_up()
