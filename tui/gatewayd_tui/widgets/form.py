"""A dialog with a line for each question; it goes only when all that was typed can be."""

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

from gatewayd_tui.questions import Question, Wrong, changed


class FormDialog(ModalScreen[dict[str, Any] | None]):
    """Answers with the values that are not as they were, or None when it is left.

    Args:
        title: what for.
        asked: the lines.
        first: the line that is typed into at once; else the first one.
    """

    BINDINGS = [
        Binding("escape", "leave", "Back", id="form.back"),
        Binding("ctrl+s", "send", "Done", id="form.send"),
        Binding("down", "app.focus_next", "Next field", show=False, id="form.next"),
        Binding("up", "app.focus_previous", "Previous field", show=False, id="form.previous"),
    ]

    def __init__(self, title: str, asked: Sequence[Question], first: str | None = None) -> None:
        super().__init__()
        self._title_text = title
        self._asked = asked
        self._first = first

    def compose(self) -> ComposeResult:
        """The lines, what may stand in the one under the cursor, and two buttons."""
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
        """Type at once."""
        name = self._first or (self._asked[0].name if self._asked else None)
        self.query_one(f"#form-{name}" if name else "#yes").focus()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Say what the line under the cursor is for."""
        for each in self._asked:
            if event.widget.id == f"form-{each.name}":
                doc = f"{each.name}: {each.doc.rstrip('.')}\n" if each.doc else ""
                self.query_one("#form-hint", Static).update(Content(doc + each.hint))

    @on(Input.Submitted)
    def action_send(self) -> None:
        """Answer, or say what is wrong and go there."""
        lines = {each.name: self.query_one(f"#form-{each.name}", Input) for each in self._asked}
        texts = {name: line.value for name, line in lines.items()}
        try:
            self.dismiss(changed(self._asked, texts))
        except Wrong as wrong:
            self.query_one("#form-wrong", Static).update(Content(f"✖ {wrong}"))
            lines[wrong.name].focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """A button is an answer."""
        if event.button.id == "yes":
            self.action_send()
        else:
            self.action_leave()

    def action_leave(self) -> None:
        """Nothing."""
        self.dismiss(None)
