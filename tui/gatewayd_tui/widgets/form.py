"""Form dialog with validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static

from gatewayd_tui.form_fields import FormField, InvalidInput, changed_values


class FormDialog(ModalScreen[dict[str, Any] | None]):
    """Form dialog; returns the changed values, or None if cancelled.

    Args:
        title: of the dialog.
        asked: the fields.
        first: name of the field with initial focus; default the first one.
    """

    BINDINGS = [
        Binding("escape", "leave", "Back", id="form.back"),
        Binding("ctrl+s", "send", "Done", id="form.send"),
        Binding("down", "app.focus_next", "Next field", show=False, id="form.next"),
        Binding("up", "app.focus_previous", "Previous field", show=False, id="form.previous"),
    ]

    def __init__(self, title: str, asked: Sequence[FormField], first: str | None = None) -> None:
        super().__init__()
        self._title_text = title
        self._asked = asked
        self._first = first

    def compose(self) -> ComposeResult:
        """Compose the fields, the hint of the focused one, and two buttons."""
        width = max((len(each.name) for each in self._asked), default=0)
        with Vertical(classes="dialog"):
            yield Static(Content(self._title_text), classes="dialog-title")
            with VerticalScroll(classes="form-lines"):
                for each in self._asked:
                    with Horizontal(classes="form-line"):
                        yield Label(Content(each.name.ljust(width + 1)))
                        yield Input(
                            each.now, placeholder=each.hint, id=f"form-{each.name}", compact=True
                        )
            yield Static(id="form-hint")
            yield Static(id="form-wrong")
            with Horizontal(classes="dialog-buttons"):
                yield Button("Back (esc)", id="no")
                yield Button("Done (enter)", id="yes", variant="primary")

    def on_mount(self) -> None:
        """Focus the first field."""
        name = self._first or (self._asked[0].name if self._asked else None)
        self.query_one(f"#form-{name}" if name else "#yes").focus()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Show description and hint of the focused field."""
        for each in self._asked:
            if event.widget.id == f"form-{each.name}":
                doc = f"{each.name}: {each.doc.rstrip('.')}\n" if each.doc else ""
                self.query_one("#form-hint", Static).update(Content(doc + each.hint))

    @on(Input.Submitted)
    def action_send(self) -> None:
        """Return the values, or show what is wrong and focus that field."""
        lines = {each.name: self.query_one(f"#form-{each.name}", Input) for each in self._asked}
        texts = {name: line.value for name, line in lines.items()}
        try:
            self.dismiss(changed_values(self._asked, texts))
        except InvalidInput as wrong:
            self.query_one("#form-wrong", Static).update(Content(f"✖ {wrong}"))
            lines[wrong.name].focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Send or cancel the form."""
        if event.button.id == "yes":
            self.action_send()
        else:
            self.action_leave()

    def action_leave(self) -> None:
        """Cancel the form."""
        self.dismiss(None)
