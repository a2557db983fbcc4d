"""Rate-limits warnings and errors that clients can provoke, per logger.

A client that finds a failing request could otherwise fill the journal with tracebacks. Each logger
writes a bounded number of warnings and errors a minute, then how many were dropped. Records that
the operator must not miss, and that no client can provoke at will, are never dropped.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from types import TracebackType

LIMITED = ("gatewayd.", "asyncio", "uvicorn.error")
"""Prefixes of the names of limited loggers; clients can provoke event-loop callbacks, too."""
EXEMPT = frozenset(
    {
        "gatewayd.daemon",
        "gatewayd.tenants.tamper_evidence.audit",
        "gatewayd.tenants.tamper_evidence.audit.head",
        "gatewayd.tenants.tamper_evidence.sealing",
        "gatewayd.tenants.tenancy",
    }
)
"""Loggers that are never limited: lifecycle of the daemon's parts, audit, store tampering.

Each record reports one change of state, caused by an operator or by the machine.
"""

MOST = 20
SECONDS = 60.0
_FRAMES = 24


class LogRateLimit(logging.Filter):
    """Passes a bounded number of warnings and errors per limited logger and window, and all else.

    Args:
        most: records of a logger in a window.
        seconds: length of a window.
        clock: monotonic.
    """

    def __init__(
        self,
        most: int = MOST,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._most, self._seconds, self._clock = most, seconds, clock
        # Bounded by the number of modules, because logger names are constants in the code.
        self._until: dict[str, float] = {}
        self._count: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write a record; its traceback is cut to the innermost frames."""
        name = record.name
        if record.levelno < logging.WARNING or not name.startswith(LIMITED) or name in EXEMPT:
            return True
        now = self._clock()
        missing = 0
        if now >= self._until.get(name, -math.inf):
            missing = max(0, self._count.get(name, 0) - self._most)
            self._until[name], self._count[name] = now + self._seconds, 0
        # Filters run outside of the handler's lock: a race of threads may miscount a record.
        self._count[name] += 1
        if self._count[name] > self._most:
            return False
        if missing:
            # Without arguments the text is not formatted again, so it may contain percent signs.
            record.msg = f"{record.getMessage()} ({missing} earlier records were dropped)"
            record.args = ()
        if record.exc_info and record.exc_info[1] is not None:
            kind, error, trace = record.exc_info
            record.exc_info = kind, error, innermost(trace)
        return True


def innermost(trace: TracebackType | None, most: int = _FRAMES) -> TracebackType | None:
    """Return the innermost frames of a traceback, because a recursion has a thousand."""
    length, here = 0, trace
    while here is not None:
        length, here = length + 1, here.tb_next
    while trace is not None and length > most:
        length, trace = length - 1, trace.tb_next
    return trace
