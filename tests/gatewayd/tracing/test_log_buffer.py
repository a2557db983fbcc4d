"""Log buffer: bounded, attributed, without secrets."""

from __future__ import annotations

import logging
import sys

from hypothesis import given
from hypothesis import strategies as st

from gatewayd.tenants.keys import new_key
from gatewayd.tracing import request_trace
from gatewayd.tracing.log_buffer import LogLines


def say(lines: LogLines, message: str, *values: object, level: int = logging.INFO) -> None:
    lines.handle(logging.LogRecord("gatewayd.x", level, "", 0, message, values, None))


@given(st.integers(0, 30), st.integers(0, 35), st.integers(1, 12))
def test_lines_since_a_number_are_those_of_a_list(count: int, since: int, most: int) -> None:
    lines, said = LogLines(most=10), list(range(1, count + 1))
    for number in said:
        say(lines, "%d", number)
    kept = [number for number in said[-10:] if number > since][-most:]
    assert [line.number for line in lines.since(since, most)] == kept
    assert lines.last == count


def test_no_line_has_a_secret() -> None:
    key = new_key()
    lines = LogLines(["the-operators-own"])
    say(lines, "came with %s and with %s", key.text, "the-operators-own")
    (line,) = lines.since(0)
    assert line.message == f"came with gw_{key.id}_[hidden] and with [hidden]"


def test_a_line_is_one_line_with_its_level_and_error() -> None:
    lines = LogLines()
    try:
        raise ValueError("no\x1b[2J")
    except ValueError:
        record = logging.LogRecord("a.b", logging.ERROR, "", 0, "it\nbroke", (), sys.exc_info())
    lines.handle(record)
    (line,) = lines.since(0)
    assert (line.level, line.source) == ("error", "a.b")
    assert line.message == "it broke: ValueError: no [2J"


def test_a_line_says_of_whom_it_speaks() -> None:
    lines, ours = LogLines(), "req_0123456789abcdef01234567"
    other = f"req_{24 * 'f'}"
    say(lines, "request %s: its sink raised", ours)
    say(lines, "nobody")
    request_trace.start_trace("mine")
    say(lines, "somebody")
    request_trace.start_trace("mine", ours)
    say(lines, "of both")
    say(lines, "of another: %s", other)
    found = [(line.request_id, line.x_request_id) for line in lines.since(0)]
    assert found == [(ours, ""), ("", ""), ("mine", "mine"), (ours, "mine"), (other, "")]
