"""Engine log: one line per record, rate limited."""

from __future__ import annotations

import json
import logging

import pytest

from gatewayd_engine.process import logs
from gatewayd_engine.process.log_context import about


def _record(words: str, error: BaseException | None = None) -> logging.LogRecord:
    trace = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("gatewayd_engine.x", logging.WARNING, "f", 1, words, (), trace)


def test_a_json_line_has_the_daemons_names_and_the_engines_number() -> None:
    line = logs.EngineLogLines(3, is_json=True).format(_record("one\ntwo", ValueError("no")))
    assert "\n" not in line
    told = json.loads(line)
    assert (told["event"], told["engine"]) == ("engine 3: one\ntwo", 3)
    assert (told["level"], told["logger"]) == ("warning", "gatewayd_engine.x")
    assert told["timestamp"].endswith("Z")
    assert "ValueError: no" in told["exception"]


def test_a_line_for_people_is_text() -> None:
    line = logs.EngineLogLines(3, is_json=False).format(_record("one"))
    assert line.endswith(" [warning] engine 3: one")


def test_a_line_names_the_model_if_the_daemon_serves_several() -> None:
    line = logs.EngineLogLines(3, "org/chat", is_json=False).format(_record("one"))
    assert line.endswith(" [warning] engine 3 of org/chat: one")
    told = json.loads(logs.EngineLogLines(3, "org/chat", is_json=True).format(_record("one")))
    assert told["event"] == "engine 3 of org/chat: one"
    assert (told["engine"], told["model"]) == (3, "org/chat")
    alone = json.loads(logs.EngineLogLines(3, is_json=True).format(_record("one")))
    assert "model" not in alone


def test_a_line_says_of_which_request_it_is() -> None:
    with about(("req_1", "mine")):
        text = logs.EngineLogLines(3, is_json=False).format(_record("one"))
        told = json.loads(logs.EngineLogLines(3, is_json=True).format(_record("one")))
        with about(("req_2", "req_2")):
            other = json.loads(logs.EngineLogLines(3, is_json=True).format(_record("one")))
    assert text.endswith(" engine 3: one request_id=req_1 x_request_id=mine")
    assert (told["request_id"], told["x_request_id"]) == ("req_1", "mine")
    assert other["request_id"] == "req_2"
    assert "x_request_id" not in other
    assert "request_id" not in logs.EngineLogLines(3, is_json=False).format(_record("one"))


@pytest.mark.parametrize("is_json", [True, False])
def test_no_words_make_a_line_of_their_own_or_drive_a_terminal(is_json: bool) -> None:
    forged = "no\n12:00:00 [critical] engine 0: forged\x1b[2J\x9b\u202e\rx\x07"
    lines = logs.EngineLogLines(3, is_json=is_json)
    told = lines.format(_record(forged))
    assert told.isprintable()
    assert "forged" in told
    error = lines.format(_record("it broke", ValueError(forged)))
    assert error.replace("\n", "").isprintable()


def test_the_same_words_come_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("gatewayd_engine.process.logs.time.monotonic", lambda: now)
    limit = logs.MessageThrottle(60.0)
    assert [limit.should_log("a"), limit.should_log("a"), limit.should_log("b")] == [
        True,
        False,
        True,
    ]
    now = 159.0
    assert not limit.should_log("a")
    now = 160.0
    assert [limit.should_log("a"), limit.should_log("a")] == [True, False]
