"""Keeps what strangers can make the daemon log within bounds.

Whoever finds a request that fails could otherwise fill the journal with its tracebacks. So of each
logger so many warnings and errors a minute are written; then how many were not. What the operator
must not miss, and no client can cause at will, is written always.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from types import TracebackType

LIMITED = ("gatewayd.", "asyncio", "uvicorn.error")
"""Beginnings of names of limited loggers; callbacks of the event loop are clients', too."""
EXEMPT = frozenset(
    {
        "gatewayd.daemon",
        "gatewayd.tenants.audit",
        "gatewayd.tenants.audit.head",
        "gatewayd.tenants.sealing",
        "gatewayd.tenants.tenancy",
    }
)
"""Never dropped: starts, stops and loss of the daemon's parts, the audit, tampering with the store.

Each tells of a change of state, by an operator or of the machine, and once for each.
"""

MOST = 20
SECONDS = 60.0
_FRAMES = 24


class Sparing(logging.Filter):
    """Lets so many warnings and errors of each limited logger through in a while; all else, too.

    Args:
        most: records of a logger in that while.
        seconds: that it lasts.
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
        # Names are those in the code: as many as there are modules.
        self._until: dict[str, float] = {}
        self._count: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to tell this; its traceback is cut to the innermost frames."""
        name = record.name
        if record.levelno < logging.WARNING or not name.startswith(LIMITED) or name in EXEMPT:
            return True
        now = self._clock()
        missing = 0
        if now >= self._until.get(name, -math.inf):
            missing = max(0, self._count.get(name, 0) - self._most)
            self._until[name], self._count[name] = now + self._seconds, 0
        self._count[name] += 1
        if self._count[name] > self._most:
            return False
        if missing:
            record.msg = f"{record.getMessage()} (before it {missing} more were not told)"
            record.args = ()
        if record.exc_info and record.exc_info[1] is not None:
            kind, error, trace = record.exc_info
            record.exc_info = kind, error, innermost(trace)
        return True


def innermost(trace: TracebackType | None, most: int = _FRAMES) -> TracebackType | None:
    """The last frames of a traceback: a recursion has a thousand."""
    length, here = 0, trace
    while here is not None:
        length, here = length + 1, here.tb_next
    while trace is not None and length > most:
        length, trace = length - 1, trace.tb_next
    return trace
