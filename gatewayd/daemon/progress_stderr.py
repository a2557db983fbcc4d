"""Standard error above a drawing at the bottom of a terminal, in whole lines.

Engines and grammar checkers inherit the daemon's standard error, and would write into the middle of
the drawing. So they inherit a pipe instead, which a thread reads; the daemon also writes to it, so
that lines keep their order.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from typing import TextIO

from rich.console import Console
from rich.text import Text

_STDERR = 2
# Starts with NUL, which no log line does.
_MARK = b"\0all that was written before is shown\0"
_PATIENCE_SECONDS = 1.0
"""Timeout for pending lines; a stopped terminal accepts none."""


class ProgressStderr:
    """Redirects standard error to lines above a drawing, until ``restore``.

    Attributes:
        console: console to draw on.
    """

    def __init__(self) -> None:
        self._own = sys.stderr
        # A duplicate, which still leads to the terminal after descriptor 2 is replaced.
        self._terminal = os.fdopen(
            os.dup(_STDERR), "w", encoding="utf-8", errors="backslashreplace", newline="\n"
        )
        self.console = Console(file=self._terminal)
        self._shown = threading.Event()
        # What is buffered belongs before the drawing, not into the pipe.
        self._own.flush()
        reading, self._writing = os.pipe()
        # The descriptor, since children inherit it; replacing ``sys.stderr`` would not catch them.
        os.dup2(self._writing, _STDERR)
        sys.stderr = _StandIn(self._terminal)
        self._thread = threading.Thread(
            target=self._relay, args=(reading,), name="lines above", daemon=True
        )
        self._thread.start()

    def restore(self) -> None:
        """End the drawing; running children still write to the pipe."""
        if self._shown.is_set():
            return
        sys.stderr.flush()
        sys.stderr = self._own
        os.dup2(self._terminal.fileno(), _STDERR)
        # The relay reaches the mark after all earlier output. The end of the pipe would come too
        # late: running children hold it open.
        os.write(self._writing, _MARK + b"\n")
        os.close(self._writing)
        self._shown.wait(_PATIENCE_SECONDS)
        # Set also after a timeout, so that a second call returns at once.
        self._shown.set()

    def close(self) -> None:
        """Show remaining output of children that have ended."""
        self.restore()
        self._thread.join(_PATIENCE_SECONDS)

    def _relay(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                if line.startswith(_MARK):
                    self._shown.set()
                else:
                    self._show(line.decode(errors="backslashreplace").rstrip("\n"))

    def _show(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a closed terminal must not block writers
            # Unwrapped: the terminal wraps it itself, and it can be copied as one line.
            self.console.print(Text.from_ansi(line), soft_wrap=True)


class _StandIn(io.TextIOWrapper):
    """Text stream that writes to the pipe, and reports whether the terminal is one.

    Args:
        terminal: the stream that it replaces.
    """

    def __init__(self, terminal: TextIO) -> None:
        super().__init__(
            open(_STDERR, "wb", closefd=False),  # noqa: SIM115 - closed with this
            encoding="utf-8",
            errors="backslashreplace",
            newline="\n",
            write_through=True,
            line_buffering=True,
        )
        self._is_terminal = terminal.isatty()

    def isatty(self) -> bool:
        """Whether the replaced stream is a terminal."""
        return self._is_terminal
