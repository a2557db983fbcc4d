"""The engine's log lines; told like the daemon's, of which it is one more voice."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from gatewayd_engine.process.config import EngineConfig
from gatewayd_engine.process.journal import Urgent, is_journal
from gatewayd_engine.process.log_context import current

_QUIET_SECONDS = 60.0


class Rarely:
    """Lets what is said again and again through once in a while.

    Args:
        seconds: for which the same words are not repeated.
    """

    def __init__(self, seconds: float = _QUIET_SECONDS) -> None:
        self._seconds = seconds
        self._until: dict[str, float] = {}

    def may(self, words: str) -> bool:
        """Whether to say this now."""
        now = time.monotonic()
        if now < self._until.get(words, now):
            return False
        # Few are alike for long; what is over is forgotten.
        self._until = {other: until for other, until in self._until.items() if until > now}
        self._until[words] = now + self._seconds
        return True


def visible(text: str, keep: str = "") -> str:
    r"""A text as one line that drives no terminal: ``a\nb`` has a backslash and an ``n`` in it.

    Args:
        text: also of somebody who would like to write lines of his own.
        keep: characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


class EngineLogLines(logging.Formatter):
    """One line for each record, with the engine's number.

    Args:
        engine: which of the daemon's engines this is.
        is_json: whether lines are JSON objects with the daemon's names; otherwise they are text.
    """

    def __init__(self, engine: int, *, is_json: bool) -> None:
        super().__init__("%(asctime)s [%(levelname)s] %(message)s", "%H:%M:%S")
        self._engine = engine
        self._is_json = is_json

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without its traceback."""
        record.levelname = record.levelname.lower()
        named = "".join(f" {key}={value}" for key, value in current().items())
        record.message = f"engine {self._engine}: {visible(record.message + named)}"
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: ANN401 - logging's
        """A traceback; only its own lines are lines."""
        return visible(super().formatException(ei), keep="\n")

    def format(self, record: logging.LogRecord) -> str:
        """The whole line."""
        if not self._is_json:
            return super().format(record)
        moment = datetime.fromtimestamp(record.created, UTC).isoformat()
        line: dict[str, Any] = {
            "event": f"engine {self._engine}: {record.getMessage()}",
            "engine": self._engine,
            "logger": record.name,
            "level": record.levelname.lower(),
            "timestamp": moment.replace("+00:00", "Z"),
            **current(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure(config: EngineConfig) -> None:
    """Send every logger's records, warnings and what ends the process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    lines = EngineLogLines(config.replica, is_json=config.log_json)
    handler.setFormatter(Urgent(lines) if is_journal() else lines)
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _last_words


def _last_words(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    logging.getLogger(__name__).critical(
        "engine process terminated by an exception", exc_info=(kind, error, trace)
    )
