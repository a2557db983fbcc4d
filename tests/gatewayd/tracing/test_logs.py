"""Daemon log: one line per event, as text or as JSON."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest

from gatewayd.config.tables import LogTable
from gatewayd.tracing import logs


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_carry_time_level_logger_and_traceback() -> None:
    out = io.StringIO()
    logs.configure(LogTable(format="json"), out)
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("gatewayd.x").exception("it broke: %d", 3)
    (line,) = out.getvalue().splitlines()
    event = json.loads(line)
    assert event["event"] == "it broke: 3"
    assert (event["level"], event["logger"]) == ("error", "gatewayd.x")
    assert "ValueError: no" in event["exception"]
    assert event["timestamp"].endswith("Z")


def test_auto_is_json_where_nobody_watches() -> None:
    out = io.StringIO()
    logs.configure(LogTable(), out)
    logging.getLogger("gatewayd.x").warning("hello")
    assert json.loads(out.getvalue())["event"] == "hello"


def test_text_is_for_people() -> None:
    out = io.StringIO()
    logs.configure(LogTable(format="text"), out)
    logging.getLogger("gatewayd.x").warning("hello")
    assert "hello" in out.getvalue()
    assert not out.getvalue().startswith("{")


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_words_make_a_line_of_their_own_or_drive_a_terminal(
    form: Literal["text", "json"],
) -> None:
    forged = "no\n12:00:00 [critical] forged\x1b[2J\x9b\u202e\rx\x07"
    out = io.StringIO()
    logs.configure(LogTable(format=form), out)
    logging.getLogger("gatewayd.x").warning("there is no model %s", forged)
    line = out.getvalue()
    assert line[-1] == "\n"
    assert line[:-1].isprintable()
    assert "forged" in line
    try:
        raise ValueError(forged)
    except ValueError:
        logging.getLogger("gatewayd.x").exception("it broke")
    assert out.getvalue().replace("\n", "").isprintable()


def test_the_level_can_change_while_it_runs() -> None:
    out = io.StringIO()
    logs.configure(LogTable(level="warning"), out)
    log = logging.getLogger("gatewayd.x")
    log.info("before")
    logs.set_level("info")
    log.info("after")
    logging.getLogger("uvicorn.error").info("uvicorn's own life")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["after"]
