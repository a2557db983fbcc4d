"""Shared prefixes of block tables: equal a brute-force search."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_engine.attention.shared_prefix import find_shared, shared_pages

tables = st.integers(1, 8).flatmap(
    lambda width: st.lists(
        st.tuples(st.lists(st.integers(0, 3), min_size=width, max_size=width), st.integers(0, 8)),
        max_size=7,
    )
)


def chained(rows: list[list[int]]) -> np.ndarray:
    """Pages whose number follows from all pages before them, as a prefix cache gives."""
    numbers: dict[tuple[int, ...], int] = {}
    return np.array(
        [
            [numbers.setdefault(tuple(row[: i + 1]), len(numbers)) for i in range(len(row))]
            for row in rows
        ],
        np.int64,
    )


def best_gain(table: np.ndarray, full: np.ndarray, lines: list[int]) -> int:
    """The most pages that any one prefix saves among lines."""
    best = 0
    for a in lines:
        for length in range(1, int(full[a]) + 1):
            same = [
                b
                for b in lines
                if full[b] >= length and (table[b, :length] == table[a, :length]).all()
            ]
            best = max(best, (len(same) - 1) * length)
    return best


@given(tables, st.integers(1, 6))
def test_the_prefix_that_saves_most_is_taken_until_none_is_worth_it(
    rows: list[tuple[list[int], int]], least: int
) -> None:
    table = chained([row for row, _ in rows]) if rows else np.zeros((0, 1), np.int64)
    full = np.array([min(count, table.shape[1]) for _, count in rows], np.int64)
    left = list(range(len(rows)))
    for shared in find_shared(table, full, least):
        num_pages, last = shared.key
        assert len(shared.lines) >= 2
        assert set(shared.lines.tolist()) <= set(left)
        assert (full[shared.lines] >= num_pages).all()
        assert (table[shared.lines, :num_pages] == table[shared.lines[0], :num_pages]).all()
        assert table[shared.lines[0], num_pages - 1] == last
        gain = (len(shared.lines) - 1) * num_pages
        assert gain == best_gain(table, full, left) >= least
        left = [line for line in left if line not in shared.lines]
    assert best_gain(table, full, left) < least


def test_a_page_in_another_place_is_another_beginning() -> None:
    table = np.array([[1, 2, 3], [7, 1, 2], [1, 2, 4]])
    (shared,) = find_shared(table, np.array([3, 3, 3]), 1)
    assert shared.key == (2, 2)
    assert shared.lines.tolist() == [0, 2]


def test_what_comes_before_the_same_page_must_be_the_same() -> None:
    table = np.array([[1, 2, 9], [5, 6, 9]])
    assert find_shared(table, np.array([3, 3]), 1) == []


def test_pages_that_are_still_written_are_not_shared() -> None:
    table = np.array([[1, 2, 3], [1, 2, 3]])
    (shared,) = find_shared(table, np.array([2, 3]), 1)
    assert shared.key == (2, 2)


def test_a_prefix_in_use_stays_until_another_saves_twice_as_much() -> None:
    three = np.array([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 3, 8, 9]])
    full = np.array([5, 5, 5])
    assert find_shared(three, full, 1)[0].key == (3, 3)
    assert find_shared(three, full, 1, held=[(5, 5)])[0].key == (5, 5)
    others = [[1, 2, 3, 10 + i, 20 + i] for i in range(4)]
    many = np.concatenate([three, np.array(others)])
    assert find_shared(many, np.full(7, 5), 1, held=[(5, 5)])[0].key == (3, 3)


@given(tables)
def test_shared_pages_are_those_that_all_lines_begin_with(
    lines: list[tuple[list[int], int]],
) -> None:
    if not lines:
        return
    width = min(len(row) for row, _ in lines)
    table = np.array([row[:width] for row, _ in lines])
    full = np.array([min(number, width) for _, number in lines])
    found = shared_pages(table, full)
    assert all(row.tolist() == table[0, :found].tolist() for row in table[:, :found])
    assert found == full.min() or len({int(page) for page in table[:, found]}) > 1
