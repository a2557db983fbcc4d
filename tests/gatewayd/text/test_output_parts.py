"""Output parts: parsers' findings, bounded cost, counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gatewayd.text.output_parts import Parsers
from gatewayd_hooks.parsing import Arguments, Part, Reasoning, Text, ToolCall


class Script:
    """A parser that says what it is told to, one entry for each piece."""

    def __init__(self, *says: Any, last: Sequence[Part] = ()) -> None:
        self._says = list(says)
        self._last = last

    def feed(self, text: str) -> Sequence[Part]:
        said = self._says.pop(0)
        if isinstance(said, Exception):
            raise said
        return said  # type: ignore[no-any-return]

    def finish(self) -> Sequence[Part]:
        return self._last


class Upper:
    """Tells all text in capitals, so that one sees that it was read."""

    def feed(self, text: str) -> Sequence[Part]:
        return [Text(text.upper())]

    def finish(self) -> Sequence[Part]:
        return [Text("!")]


def test_calls_are_looked_for_beside_the_reasoning() -> None:
    reasoning = Script([Reasoning("so")], [Reasoning("."), Text("ab")], [Text("c")])
    reader = Parsers(reasoning=lambda: reasoning, tools=Upper).reader()

    parts = reader.read(["1", "2"], is_last=False) + reader.read(["3"], is_last=True)

    assert parts == [Reasoning("so."), Text("AB"), Text("C!")]


def test_tokens_of_reasoning_are_counted_up_to_its_last() -> None:
    says: Any = ([], [Reasoning("so")], [], [Text("a")], [Text("b")])
    reader = Parsers(reasoning=lambda: Script(*says)).reader()

    reader.read(list("12345"), is_last=True)

    assert reader.reasoning_pieces == 2


def test_reasoning_that_nobody_wants_is_left_out_and_counted() -> None:
    reader = Parsers(
        reasoning=lambda: Script([Reasoning("so")], [Text("a")]), keeps_reasoning=False
    ).reader()

    assert reader.read(["1", "2"], is_last=True) == [Text("a")]
    assert reader.reasoning_pieces == 1


def test_calls_beyond_the_most_are_left_out() -> None:
    says = [ToolCall(0, "f"), Arguments(0, "{"), Arguments(0, "}"), ToolCall(1, "g")]
    reader = Parsers(tools=lambda: Script(says), most_calls=1).reader()

    assert reader.read(["x"], is_last=True) == [ToolCall(0, "f"), Arguments(0, "{}")]
    assert reader.num_calls == 1


@pytest.mark.parametrize("fault", [ValueError("broken"), None])
def test_a_parser_that_fails_leaves_text(fault: Any) -> None:
    says: Any = ([Text("a")], [], fault, [Text("never")])
    reader = Parsers(tools=lambda: Script(*says)).reader()

    read = [reader.read([piece], is_last=False) for piece in ("a", "b", "c", "d")]

    assert read == [[Text("a")], [], [Text("bc")], [Text("d")]]
    assert reader.read([], is_last=True) == []


@pytest.mark.parametrize(
    ("pieces", "says", "parts"),
    [
        (["a <", "tool"], [[Text("a ")]], [Text("a <tool")]),
        (["<t>so</t>\n\nb<", "c"], [[Reasoning("so"), Text("b")]], [Reasoning("so"), Text("b<c")]),
        (
            ['<call>{"name": "f", "arguments": {"x"', ": 1}"],
            [[ToolCall(0, "f"), Arguments(0, "{")]],
            [ToolCall(0, "f"), Arguments(0, "{"), Text('"x": 1}')],
        ),
        # What does not quote the text says nothing of what was withheld.
        (["a <", "b"], [[Text("A")]], [Text("Ab")]),
    ],
)
def test_what_a_parser_withheld_before_it_failed_is_text(
    pieces: list[str], says: Any, parts: list[Part]
) -> None:
    reader = Parsers(tools=lambda: Script(*says, ValueError("broken"))).reader()

    read = [reader.read([piece], is_last=False) for piece in pieces]

    assert merged(read) == parts


def merged(read: Sequence[Sequence[Part]]) -> list[Part]:
    """Parts of all reads, adjacent texts joined."""
    found: list[Part] = []
    for part in (part for parts in read for part in parts):
        if found and isinstance(part, Text) and isinstance(found[-1], Text):
            found[-1] = Text(found[-1].text + part.text)
        else:
            found.append(part)
    return found


def test_a_parser_that_cannot_be_made_leaves_text() -> None:
    def make() -> Script:
        raise RuntimeError("broken")

    reader = Parsers(tools=make).reader()

    assert reader.read(["a"], is_last=True) == [Text("a")]


def test_the_end_is_told_once() -> None:
    reader = Parsers(tools=Upper).reader()

    assert reader.read(["a"], is_last=True) == [Text("A!")]
    assert reader.read([], is_last=True) == []
