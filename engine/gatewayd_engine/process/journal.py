"""Log lines for systemd's journal: each starts with a priority prefix.

Prefixes like ``<3>`` are explained in sd-daemon(3); the journal strips them and stores them as
PRIORITY, so that `journalctl -p warning` works.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

_STDERR = 2
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG = 7


def is_journal(environ: Mapping[str, str] = os.environ, fd: int = _STDERR) -> bool:
    """Whether a descriptor is the stream that systemd has connected to the journal.

    A child process with another stderr inherits the variable as well, so the inodes are compared.
    """
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def prefix(level: int) -> str:
    """Return the prefix of a level: ``prefix(logging.WARNING) == "<4>"``."""
    return f"<{next((number for least, number in _PRIORITIES if level >= least), _DEBUG)}>"


class JournalFormatter(logging.Formatter):
    """Formatter that adds priority prefixes to another formatter's lines.

    Args:
        formatter: formats the records.
    """

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: logging.LogRecord) -> str:
        """Format a record; each line of a traceback gets the same prefix."""
        text, mark = self._formatter.format(record), prefix(record.levelno)
        return "\n".join(mark + line for line in text.splitlines())
