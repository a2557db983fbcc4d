"""Dialog that shows a secret once; nothing of it is kept afterwards."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static


class Secret(ModalScreen[None]):
    """Dialog with a secret.

    Args:
        title: description of the secret.
        secret: the secret.
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
        """Compose the secret with a warning that it is shown only once."""
        with Vertical(classes="dialog"):
            yield Static(Content(self._title_text), classes="dialog-title")
            yield Static(Content(self._secret), id="secret")
            yield Static(
                "\nThe secret is shown only once: save it now. It cannot be recovered.\n"
                "y copies it, escape closes this."
            )

    def action_copy(self) -> None:
        """Copy the secret to the terminal's clipboard."""
        self.app.copy_to_clipboard(self._secret)
        self.notify("copied")

    def action_leave(self) -> None:
        """Discard the secret, also from the application's copy of the clipboard."""
        if self.app.clipboard == self._secret:
            # Textual has no public way to clear it.
            self.app._clipboard = ""
        self._secret = ""
        self.dismiss()
