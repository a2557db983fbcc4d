"""docs/console.md: lists exactly the console's keys."""

from __future__ import annotations

import re

import pytest
from textual.binding import Binding
from textual.keys import format_key

from gatewayd_tui.app import Console
from gatewayd_tui.palette import own_bindings
from gatewayd_tui.screens import SCREENS
from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.widgets.table import LiveTable
from tests.docs.project import document

ROW = re.compile(r"^\| (`.+`) \| ([^|]+) \|", re.MULTILINE)


def rows_of(text: str) -> list[tuple[str, str]]:
    """Keys and what they do, of a part of the document."""
    return [(keys, does.strip()) for keys, does in ROW.findall(text)]


def rows_for(bindings: list[Binding]) -> list[tuple[str, str]]:
    """What the document has to say of bindings."""
    return [
        (" ".join(f"`{format_key(key)}`" for key in each.key.split(",")), each.description)
        for each in bindings
    ]


def part(begin: str, end: str) -> str:
    text = document("docs/console.md").path.read_text()
    assert begin in text, begin
    return re.split(end, text.partition(begin)[2], maxsplit=1, flags=re.MULTILINE)[0]


def bindings_of(owner: type) -> list[Binding]:
    return [each for each in owner.BINDINGS if isinstance(each, Binding)]  # type: ignore[attr-defined]


def test_keys_that_work_everywhere() -> None:
    own = [each for each in bindings_of(Console) if not (each.id or "").startswith("open.")]
    assert rows_of(part("Everywhere:", "^On a screen")) == rows_for(own)


def test_keys_of_tables() -> None:
    own = bindings_of(ConsoleScreen) + bindings_of(LiveTable)
    assert rows_of(part("On a screen with a table:", "^Destructive actions")) == rows_for(own)


@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: screen.NAME)
def test_keys_of_screens(screen: type[ConsoleScreen]) -> None:
    found = rows_of(part(f"### `{screen.KEY}` {screen.TITLE}\n", "^#"))
    assert found == rows_for(own_bindings(screen))


def test_no_other_screen_is_described() -> None:
    text = document("docs/console.md").path.read_text()
    titles = re.findall(r"^### `(.)` (.*)$", text, re.MULTILINE)
    assert titles == [(screen.KEY, screen.TITLE) for screen in SCREENS]
