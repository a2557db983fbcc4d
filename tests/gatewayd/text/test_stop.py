"""Stop strings: equal a matcher that reads one character at a time."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gatewayd.text.stop import StopMatcher

letters = st.text("ab\u00e9", max_size=24)
stop_lists = st.lists(st.text("ab\u00e9", min_size=1, max_size=4), min_size=1, max_size=4)


def naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def cut(text: str, sizes: list[int]) -> list[str]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(text[at : at + size])
        at += size
    return [*pieces, text[at:]]


@given(letters, stop_lists, st.lists(st.integers(0, 5), max_size=8), st.booleans())
@example("abcd", ["abcd", "bc"], [4], False)
def test_any_cutting_of_a_text_stops_where_reading_by_character_stops(
    text: str, stops: list[str], sizes: list[int], include: bool
) -> None:
    matcher = StopMatcher(stops, include=include)
    given_text = ""
    for piece in cut(text, sizes):
        given_text += matcher.feed(piece)
        if matcher.matched is not None:
            break
    else:
        given_text += matcher.finish()
    assert (given_text, matcher.matched) == naive(text, stops, include)


@given(letters, stop_lists)
def test_only_what_may_become_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    given_text = "".join(matcher.feed(char) for char in text[: len(naive(text, stops, False)[0])])
    if matcher.matched is not None:
        return
    seen = text[: len(naive(text, stops, False)[0])]
    held = seen[len(given_text) :]
    assert held == "" or any(stop.startswith(held) for stop in stops)
    longer = (seen[i:] for i in range(len(given_text)))
    assert not any(stop.startswith(tail) for tail in longer for stop in stops)


@pytest.mark.parametrize("stop", ["\n\n", "<|end|>", "\U0001f600"])
def test_a_stop_cut_at_every_place_is_found_and_not_shown(stop: str) -> None:
    text = f"before{stop}after"
    for at in range(len(text)):
        matcher = StopMatcher([stop])
        shown = matcher.feed(text[:at])
        if matcher.matched is None:
            shown += matcher.feed(text[at:])
        assert shown == "before"
        assert matcher.matched == stop
