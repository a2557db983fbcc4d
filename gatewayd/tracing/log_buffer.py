"""Ring buffer of the daemon's latest log records, for the admin API and the console."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Sequence
from itertools import islice

from gatewayd.text.printable import printable
from gatewayd.tracing import request_trace
from gatewayd.wire.snapshot import LogView

MOST = 1000
_CHARS = 2000
_REQUEST_ID = re.compile(r"\breq_[0-9a-f]{24}\b")
# The key's id, the first group, stays: it tells the operator which key a record is about.
_KEYS = re.compile(r"(gw_[0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_REDACTED = "[hidden]"


class LogLines(logging.Handler):
    """Logging handler with a ring buffer; the oldest record is dropped when it is full.

    Args:
        secrets: strings to redact; API keys are recognized by their format.
        most: capacity, in records.
    """

    def __init__(self, secrets: Sequence[str] = (), most: int = MOST) -> None:
        super().__init__()
        self._secrets = [secret for secret in secrets if secret]
        self._lines: deque[LogView] = deque(maxlen=most)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record; called under the handler's lock, by any thread."""
        try:
            message = record.getMessage()
            if record.exc_info and record.exc_info[1] is not None:
                error = record.exc_info[1]
                message = f"{message}: {type(error).__name__}: {error}"
        except Exception:  # noqa: BLE001 - as the standard library's handlers do
            self.handleError(record)
            return
        message, request = self._redacted(message), request_trace.current()
        named = _request_id_in(message)
        if request is not None and named not in ("", request.request_id):
            request = None  # the record is about another request, whose client id is unknown here
        self._count += 1
        self._lines.append(
            LogView(
                number=self._count,
                unix=record.created,
                level=record.levelname.lower(),
                source=record.name,
                message=message,
                request_id=named or ("" if request is None else request.request_id),
                x_request_id="" if request is None else request.answered_id,
            )
        )

    def since(self, number: int, most: int = MOST) -> list[LogView]:
        """Return the latest ``most`` records after the given number, oldest first."""
        # The handler's lock, as in ``emit``: a deque must not change while it is iterated.
        self.acquire()
        try:
            wanted = min(most, self._count - number, len(self._lines))
            # From the new end, so that only the wanted records are visited.
            found = list(islice(reversed(self._lines), max(0, wanted)))
        finally:
            self.release()
        return found[::-1]

    @property
    def last(self) -> int:
        """Number of the latest record; 0 before the first."""
        return self._count

    def _redacted(self, message: str) -> str:
        # Redacted before it is truncated: a secret cut in two would not be found.
        for secret in self._secrets:
            message = message.replace(secret, _REDACTED)
        message = _KEYS.sub(rf"\1_{_REDACTED}", message)
        return printable(message, _CHARS)


def _request_id_in(message: str) -> str:
    """Return the request id in a message, which may differ from that of the logging task."""
    found = _REQUEST_ID.search(message)
    return "" if found is None else found[0]
