"""Journal: lines for systemd's journal."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gatewayd_engine.process.journal import JournalFormatter, is_journal, prefix

SAY = """
import logging, sys
HOW
log = logging.getLogger("x")
log.warning("careful")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("broken")
"""
DAEMON = (
    "from gatewayd.config.tables import LogTable; from gatewayd.tracing import logs;"
    "logs.configure(LogTable({}))"
)
ENGINE = (
    "import msgspec; from gatewayd.config.tables import Config;"
    "from gatewayd.engines.replicas.launch import engine_config;"
    "from gatewayd_engine.process import logs;"
    "logs.configure(msgspec.structs.replace(engine_config(Config()), log_json={}))"
)


@pytest.mark.parametrize(
    ("level", "mark"),
    [
        (logging.DEBUG, "<7>"),
        (logging.INFO, "<6>"),
        (logging.WARNING, "<4>"),
        (logging.WARNING + 1, "<4>"),
        (logging.ERROR, "<3>"),
        (logging.CRITICAL, "<2>"),
    ],
)
def test_levels_are_those_of_syslog(level: int, mark: str) -> None:
    assert prefix(level) == mark


def test_the_journal_is_told_from_any_other_stream(tmp_path: Path) -> None:
    file = (tmp_path / "stream").open("w")
    found = os.fstat(file.fileno())
    assert is_journal({"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}, file.fileno())
    assert not is_journal({"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino + 1}"}, file.fileno())
    assert not is_journal({}, file.fileno())
    file.close()
    assert not is_journal({"JOURNAL_STREAM": "1:2"}, 9999)


def test_every_line_of_a_traceback_is_as_urgent_as_its_first() -> None:
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "one\ntwo", None, None)
    assert JournalFormatter(logging.Formatter()).format(record) == "<3>one\n<3>two"


@pytest.mark.parametrize(
    "how",
    [DAEMON.format("format='json'"), DAEMON.format("format='text'"), ENGINE.format(True)],
)
@pytest.mark.parametrize("is_theirs", [True, False])
def test_daemon_and_engine_write_to_the_journal_alike(
    tmp_path: Path, how: str, is_theirs: bool
) -> None:
    with (tmp_path / "stderr").open("w+") as stream:
        found = os.fstat(stream.fileno())
        env = {**os.environ, "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino + (not is_theirs)}"}
        code = SAY.replace("HOW", how)
        subprocess.run([sys.executable, "-c", code], env=env, stderr=stream, check=True, timeout=60)
        stream.seek(0)
        lines = stream.read().splitlines()
    assert [line[:3] in ("<3>", "<4>") for line in lines] == [is_theirs] * len(lines)
    if "text" not in how:
        careful, broken = (json.loads(line[3 * is_theirs :]) for line in lines)
        assert careful["level"] == "warning"
        assert "ZeroDivisionError" in broken["exception"]
