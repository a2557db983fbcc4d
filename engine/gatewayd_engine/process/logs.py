"""Log lines of the engine, in the daemon's format."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from gatewayd_engine.process.config import EngineConfig
from gatewayd_engine.process.journal import JournalFormatter, is_journal
from gatewayd_engine.process.log_context import current

_QUIET_SECONDS = 60.0


class MessageThrottle:
    """Rate limit of repeated log messages.

    Args:
        seconds: for which the same message is not repeated.
    """

    def __init__(self, seconds: float = _QUIET_SECONDS) -> None:
        self._seconds = seconds
        self._until: dict[str, float] = {}

    def should_log(self, message: str) -> bool:
        """Whether to log a message now."""
        now = time.monotonic()
        if now < self._until.get(message, now):
            return False
        # Few messages repeat for long; expired entries are removed.
        self._until = {other: until for other, until in self._until.items() if until > now}
        self._until[message] = now + self._seconds
        return True


def visible(text: str, keep: str = "") -> str:
    r"""Escape a text to one line without control characters: a newline becomes ``\n``.

    Args:
        text: possibly untrusted text, which must not forge log lines.
        keep: characters that are not escaped.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def engine_label(engine: int, model: str) -> str:
    """Return the name of an engine in log lines.

    Args:
        engine: index of the engine in the daemon.
        model: its model; empty if the daemon serves no other.
    """
    return f"engine {engine} of {model}" if model else f"engine {engine}"


class EngineLogLines(logging.Formatter):
    """Formatter of records as single lines, with the engine's number.

    Args:
        engine: index of this engine in the daemon.
        model: its model; empty if the daemon serves no other.
        is_json: whether lines are JSON objects with the daemon's keys; otherwise they are text.
    """

    def __init__(self, engine: int, model: str = "", *, is_json: bool) -> None:
        super().__init__("%(asctime)s [%(levelname)s] %(message)s", "%H:%M:%S")
        self._engine = engine
        self._model = model
        self._label = engine_label(engine, visible(model))
        self._is_json = is_json

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Format the line without its traceback."""
        record.levelname = record.levelname.lower()
        # Ids are escaped with the message: one of them comes from the client.
        named = "".join(f" {key}={value}" for key, value in current().items())
        record.message = f"{self._label}: {visible(record.message + named)}"
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: ANN401 - logging's
        """Format a traceback, escaping everything but its own line breaks."""
        return visible(super().formatException(ei), keep="\n")

    def format(self, record: logging.LogRecord) -> str:
        """Format the whole record."""
        if not self._is_json:
            return super().format(record)
        moment = datetime.fromtimestamp(record.created, UTC).isoformat()
        line: dict[str, Any] = {
            "event": f"{self._label}: {record.getMessage()}",
            "engine": self._engine,
            **({"model": self._model} if self._model else {}),
            "logger": record.name,
            "level": record.levelname.lower(),
            "timestamp": moment.replace("+00:00", "Z"),
            **current(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure(config: EngineConfig) -> None:
    """Send log records, warnings and uncaught exceptions to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    lines = EngineLogLines(config.replica, config.log_model, is_json=config.log_json)
    handler.setFormatter(JournalFormatter(lines) if is_journal() else lines)
    # ``force`` replaces handlers that imported libraries may have installed.
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    logging.getLogger(__name__).critical(
        "engine process terminated by an exception", exc_info=(kind, error, trace)
    )
