"""A dialog that shows a secret, once: when it goes nothing of it is left."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static


class Secret(ModalScreen[None]):
    """See above.

    Args:
        title: of what it is.
        secret: itself.
    """

    BINDINGS = [
        Binding("y", "copy", "Copy", id="secret.copy"),
        Binding("escape,enter,q", "leave", "I have saved it", id="secret.leave"),
    ]

    def __init__(self, title: str, secret: str) -> None:
        super().__init__()
        self._title_text = title
        self._secret = secret

    def compose(self) -> ComposeResult:
        """The secret, and that it does not come again."""
        with Vertical(classes="dialog"):
            yield Static(Content(self._title_text), classes="dialog-title")
            yield Static(Content(self._secret), id="secret")
            yield Static(
                "\nThe secret is shown only once: save it now. It cannot be recovered.\n"
                "y copies it, escape closes this."
            )

    def action_copy(self) -> None:
        """Into the clipboard of the terminal."""
        self.app.copy_to_clipboard(self._secret)
        self.notify("copied")

    def action_leave(self) -> None:
        """Forget it. What the application keeps of its clipboard, too."""
        if self.app.clipboard == self._secret:
            self.app._clipboard = ""
        self._secret = ""
        self.dismiss()
