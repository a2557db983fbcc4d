"""Server-sent events: same for any split of the network."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gatewayd_lang.events import EventReader

STREAM = (
    b': comment\n\ndata: {"a": 1}\n\nevent: x\nid: 3\ndata:{"b": "\xc3\xa9"}\r\n\r\n'
    b"data: [DONE]\n\n"
)
PAYLOADS = [b'{"a": 1}', b'{"b": "\xc3\xa9"}', b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_do_not_depend_on_where_the_stream_is_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    reader = EventReader()
    events = [
        payload
        for begin, end in itertools.pairwise(edges)
        for payload in reader.feed(STREAM[begin:end])
    ]
    assert events == PAYLOADS


def test_an_event_waits_for_the_end_of_its_line() -> None:
    reader = EventReader()
    assert reader.feed(b'data: {"a"') == []
    assert reader.feed(b": 1}\n\n") == [b'{"a": 1}']
