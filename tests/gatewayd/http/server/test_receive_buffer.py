"""Receive buffer: bytes are cut at the ends of heads and bodies before they are parsed."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from gatewayd.http.server.receive_buffer import ReceiveBuffer

LINES = st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"a", b"bc"]), max_size=20)


def cut(stream: bytes) -> list[bytes]:
    """The pieces, by a search from the left."""
    pieces = []
    while stream:
        end = stream.find(b"\r\n\r\n")
        end = len(stream) if end < 0 else end + 4
        pieces.append(stream[:end])
        stream = stream[end:]
    return pieces


def taken(
    stream: bytes, sizes: list[int], end: bytes, take: Callable[[ReceiveBuffer], bytes]
) -> list[bytes]:
    """The pieces of a stream that comes in these sizes; what was cut short goes on in the next."""
    intake, pieces = ReceiveBuffer(), [b""]
    for size in [*sizes, len(stream)]:
        intake.add(stream[:size])
        stream = stream[size:]
        while intake.size:
            piece = take(intake)
            if pieces[-1].endswith(end) or not pieces[-1]:
                pieces.append(piece)
            else:
                pieces[-1] += piece
    return pieces[1:]


@given(LINES, st.lists(st.integers(0, 9), max_size=12), st.integers(1, 60))
def test_pieces_end_with_lines_however_they_have_come(
    words: list[bytes], sizes: list[int], most: int
) -> None:
    def bounded(piece: bytes) -> bytes:
        assert 0 < len(piece) <= most
        return piece

    stream = b"".join(words)
    pieces = taken(
        stream, sizes, b"\r\n\r\n", lambda intake: bounded(intake.read_through_empty_line(most))
    )
    assert pieces == cut(stream)
    pieces = taken(stream, sizes, b"\n", lambda intake: bounded(intake.read_through_line(most)))
    assert b"".join(pieces) == stream
    assert all(piece.find(b"\n") in (-1, len(piece) - 1) for piece in pieces)


def test_an_empty_line_may_begin_with_the_end_of_a_line() -> None:
    intake = ReceiveBuffer()
    intake.add(b"0\r\n\r\nGET")
    assert intake.read_through_line(99) == b"0\r\n"
    assert intake.read_through_empty_line(99) == b"\r\n"


@given(st.binary(max_size=30), st.lists(st.integers(1, 9), max_size=9))
def test_what_is_taken_is_all_in_its_order(stream: bytes, sizes: list[int]) -> None:
    intake, taken = ReceiveBuffer(), b""
    intake.add(stream[:7])
    for size in sizes:
        if intake.size:
            piece = intake.read(size)
            assert len(piece) <= size
            taken += piece
        assert intake.size == len(stream[:7]) - len(taken)
    intake.add(stream[7:])
    assert taken + intake.read(30) == stream
    assert not intake.size


def test_the_end_of_a_body_is_no_half_of_an_empty_line() -> None:
    intake = ReceiveBuffer()
    intake.add(b"a\r\n")
    assert intake.read_through_empty_line(99) == b"a\r\n"
    intake.add(b"\r\n\r")
    assert intake.read(1) == b"\r"
    intake.add(b"\n\r\n")
    assert intake.read_through_empty_line(99) == b"\n\r\n\r\n"
