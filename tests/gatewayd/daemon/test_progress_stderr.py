"""Progress bars at the bottom of a terminal, with whole log lines above them."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import textwrap

LONG = "a line that is longer than the terminal is wide, and is broken by it alone: " + "x" * 30
PROGRAM = textwrap.dedent(
    f"""
    import asyncio, logging, subprocess, sys
    from gatewayd.config.tables import LogTable
    from gatewayd.daemon.banner import show_loading
    from gatewayd.daemon.progress_stderr import ProgressStderr
    from gatewayd.engines.api import ReplicaState, ReplicaStatus
    from gatewayd.tracing import logs

    logs.configure(LogTable())
    log = logging.getLogger("gatewayd.test")
    log.info("before")
    above = ProgressStderr()
    assert sys.stderr.isatty() and logs.is_text(LogTable())
    child = subprocess.Popen(["sh", "-c", "read x; echo child goes on >&2"], stdin=subprocess.PIPE)

    class Fleet:
        looks = 0

        @property
        def is_ready(self):
            self.looks += 1
            if self.looks == 4:
                subprocess.run(["sh", "-c", "echo engine 0: the pool is made >&2"])
                log.warning("the daemon's own")
                subprocess.run(["sh", "-c", "echo '{LONG}' >&2"])
            return self.looks > 8

        def status(self):
            state = ReplicaState.STARTING
            return [ReplicaStatus(n, state, 1, 0.0, 0, "loading 20%", None) for n in range(2)]

    asyncio.run(show_loading([("nano", Fleet())], above.console))
    log.info("the last one while it loads")
    above.restore()
    log.info("behind")
    child.communicate(b"x")
    above.close()
    sys.stderr.write("the end\\n")
    """
)


class _Screen:
    """The little of a terminal that progress needs."""

    def __init__(self) -> None:
        self.rows = [""]
        self._row = self._column = 0

    def write(self, text: str) -> None:
        for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            if part == "\r":
                self._column = 0
            elif part == "\n":
                self._row += 1
                self._column = 0
                self.rows += [""] * (self._row >= len(self.rows))
            elif part == "\x1b[2K":
                self.rows[self._row] = ""
            elif part == "\x1b[1A":
                self._row -= 1
            elif not part.startswith("\x1b"):
                row = self.rows[self._row].ljust(self._column)
                end = self._column + len(part)
                self.rows[self._row] = row[: self._column] + part + row[end:]
                self._column = end


def _shown_of(program: str) -> list[str]:
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "90", "NO_COLOR": "1"}
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=theirs, stdout=theirs, stderr=theirs, env=environ
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            some = os.read(ours, 4096)
        except OSError:  # nobody has it open any more
            break
        written += some
        if not some:
            break
    os.close(ours)
    screen = _Screen()
    screen.write(written.decode())
    assert child.wait() == 0, screen.rows
    return [row.rstrip() for row in screen.rows if row.strip()]


def test_lines_of_the_daemon_and_of_its_children_are_whole_and_above_the_bars() -> None:
    rows = _shown_of(PROGRAM)
    told = [re.sub(r"^[\d:]+ \[\w+ *\] ", "", row).removesuffix(" [gatewayd.test]") for row in rows]
    assert told == [
        "before",
        "engine 0: the pool is made",
        "the daemon's own",
        LONG,
        "the last one while it loads",
        "behind",
        "child goes on",
        "the end",
    ]
