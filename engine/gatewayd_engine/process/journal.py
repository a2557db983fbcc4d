"""Standard error that ends in systemd's journal: lines begin with how urgent they are.

``<3>`` and the like are explained in sd-daemon(3); the journal takes them away and keeps them as
PRIORITY, so that `journalctl -p warning` finds what matters.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

_STDERR = 2
_URGENCIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG = 7


def is_journal(environ: Mapping[str, str] = os.environ, fd: int = _STDERR) -> bool:
    """Whether a descriptor is the stream that systemd has connected to the journal.

    A child that writes elsewhere inherits the variable all the same, so the numbers are compared.
    """
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def prefix(level: int) -> str:
    """What a line begins with: ``prefix(logging.WARNING) == "<4>"``."""
    return f"<{next((number for least, number in _URGENCIES if level >= least), _DEBUG)}>"


class Urgent(logging.Formatter):
    """Another formatter's lines, each with its urgency in front.

    Args:
        formatter: makes the text.
    """

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: logging.LogRecord) -> str:
        """All lines of a record; a traceback's are as urgent as its first."""
        text, mark = self._formatter.format(record), prefix(record.levelno)
        return "\n".join(mark + line for line in text.splitlines())
