"""Table: incremental updates equal tables built afresh."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult

from gatewayd.wire.snapshot import WaitingView
from gatewayd_tui.screens.queue import COLUMNS as QUEUE
from gatewayd_tui.widgets.table import Cell, Column, LiveTable, matches
from tests.tui import samples


class Row(NamedTuple):
    key: str
    number: int
    word: str


COLUMNS: list[Column[Row]] = [
    Column("key", 6, lambda r: r.key, lambda r: r.key),
    Column("number", 6, lambda r: str(r.number), lambda r: r.number, is_number=True),
    Column("word", 0, lambda r: (r.word, "red") if r.number % 2 else r.word),
]
ROWS = st.lists(
    st.builds(Row, st.sampled_from("abcdefgh"), st.integers(0, 9), st.sampled_from("xyz")),
    max_size=12,
    unique_by=lambda r: r.key,
)


class Holder(App[None]):
    def __init__(self, table: LiveTable[Row]) -> None:
        super().__init__()
        self.table = table

    def compose(self) -> ComposeResult:
        yield self.table


def cells_of(table: LiveTable[Row]) -> list[list[str]]:
    """What stands in the table, without blanks around."""
    rows = [table.get_row_at(place) for place in range(table.row_count)]
    return [[cell.plain.strip() for cell in row[1:]] for row in rows]


def expected(rows: list[Row], sort: int, is_turned: bool, words: str) -> list[list[str]]:
    """The same by brute force: ``sort`` counts presses of the key."""
    if sort % 3 == 1:
        rows = sorted(rows, key=lambda r: r.key, reverse=is_turned)
    elif sort % 3 == 2:
        rows = sorted(rows, key=lambda r: r.number, reverse=not is_turned)
    elif is_turned:
        rows = rows[::-1]
    shown = [[r.key, str(r.number), r.word] for r in rows]
    return [row for row in shown if all(word in " ".join(row) for word in words.split())]


async def test_any_sequence_of_rows_gives_what_a_fresh_table_has() -> None:
    table = LiveTable(COLUMNS, lambda row: row.key)
    steps = st.lists(
        st.one_of(
            ROWS.map(lambda rows: ("rows", rows)),
            st.sampled_from(["sort", "turn", "mark", "down", "up"]).map(lambda what: (what, None)),
            st.sampled_from(["", "x", "a", "1 y"]).map(lambda words: ("filter", words)),
        ),
        max_size=12,
    )
    async with Holder(table).run_test(size=(80, 24)) as pilot:

        @given(steps=steps)
        def run(steps: list[tuple[str, object]]) -> None:
            table.set_filter("")
            table.set_rows([])
            while table._sorted is not None:
                table.action_sort_next()
            table._is_turned = False
            rows: list[Row] = []
            sort, is_turned, words = 0, False, ""
            for what, value in steps:
                under = table.current()
                if what == "rows":
                    rows = list(value)  # type: ignore[call-overload]
                    table.set_rows(rows)
                    kept = [row for row in table.shown() if under and row.key == under.key]
                    assert not kept or table.current() == kept[0]  # the cursor stays with its row
                elif what == "filter":
                    words = str(value)
                    table.set_filter(words)
                elif what == "sort":
                    sort, is_turned = sort + 1, False
                    table.action_sort_next()
                elif what == "turn":
                    is_turned = not is_turned
                    table.action_sort_turn()
                elif what == "mark":
                    table.action_mark()
                else:
                    getattr(table, f"action_cursor_{what}")()
                assert cells_of(table) == expected(rows, sort, is_turned, words)
                shown = {row[0] for row in cells_of(table)}
                under = table.current()
                wanted = table.marked & shown if table.marked else {under.key} if under else set()
                assert {row.key for row in table.chosen()} == wanted
                assert (under is None) == (not shown)

        run()
        await pilot.pause()


async def test_marks_and_the_gutter_go_with_their_rows() -> None:
    table = LiveTable(COLUMNS, lambda row: row.key)
    rows = [Row(key, 1, "x") for key in "abc"]
    async with Holder(table).run_test() as pilot:
        table.set_rows(rows)
        await pilot.press("down", "space")
        assert table.marked == {"b"}
        assert [row.key for row in table.chosen()] == ["b"]
        table.set_rows([rows[2], Row("b", 5, "y"), Row("d", 1, "x")])
        assert [table.get_row_at(place)[0].plain for place in range(3)] == ["", "▶", ""]
        table.set_rows([rows[2]])
        assert table.marked == set()
        assert table.chosen() == [rows[2]]


async def test_two_rows_with_one_key_are_two_rows() -> None:
    table = LiveTable(COLUMNS, lambda row: row.key)
    async with Holder(table).run_test():
        table.set_rows([Row("a", 1, "x"), Row("a", 2, "y"), Row("a", 3, "z")])
        table.set_rows([Row("a", 2, "y"), Row("a", 1, "x")])
        assert cells_of(table) == [["a", "2", "y"], ["a", "1", "x"]]


async def test_what_strangers_write_is_text_and_no_markup() -> None:
    table = LiveTable(COLUMNS, lambda row: row.key)
    async with Holder(table).run_test():
        table.set_rows([Row("[b]", 1, "[red]x[/nonsense]")])
        assert cells_of(table) == [["[b]", "1", "[red]x[/nonsense]"]]


def test_a_filter_is_words_that_occur_and_words_that_do_not() -> None:
    cells: list[Cell] = ["Alpha", ("beta", "red")]
    assert matches("", cells)
    assert matches("ALPHA bet", cells)
    assert not matches("alpha gamma", cells)
    assert matches("!gamma", cells)
    assert not matches("alpha !beta", cells)
    assert not matches("!", cells)  # a single mark is a word like any other


def batches() -> Iterator[list[WaitingView]]:
    """Two thousand that wait; at each step ten leave, ten come and two hundred are older."""
    for step in range(4):
        yield [
            samples.waiting(n, age_ms=float(step if n < 10 * step + 200 else 0))
            for n in range(10 * step, 10 * step + 2000)
        ]


@pytest.mark.flaky(reruns=2)
async def test_two_hundred_of_two_thousand_rows_change_in_a_fraction_of_what_all_take() -> None:
    table = LiveTable(QUEUE, lambda row: row.id)
    async with Holder(table).run_test(size=(120, 40)) as pilot:  # type: ignore[arg-type]
        took = []
        for rows in batches():
            await pilot.pause()
            began = time.process_time()
            table.set_rows(rows)
            took.append(time.process_time() - began)
        await pilot.pause()
        assert table.row_count == 2000
    assert min(took[1:]) < took[0] / 4, took  # it is a fifteenth; all of them at first
