"""Logging of the daemon process: structlog in front of the standard library's loggers.

Records go to standard error, one per line; with a syslog severity if that is systemd's journal.
Of what clients send, only request ids are logged.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog

from gatewayd.config.tables import LogTable
from gatewayd.tracing import request_trace
from gatewayd.tracing.log_rate_limit import LogRateLimit
from gatewayd_engine.process.journal import JournalFormatter, is_journal
from gatewayd_engine.process.logs import visible


def configure(table: LogTable, stream: TextIO | None = None) -> None:
    """Send every logger's records to ``stream``, standard error by default."""
    handler = _StandardError() if stream is None else logging.StreamHandler(stream)
    stream = handler.stream
    is_text = _is_text(table, stream)
    stamp = structlog.processors.TimeStamper(fmt="%H:%M:%S" if is_text else "iso", utc=not is_text)
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        stamp,
        _with_request,
        structlog.processors.format_exc_info,
    ]
    lines = structlog.stdlib.ProcessorFormatter(
        # All records come from the standard library's loggers, which this chain prepares.
        foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *_renderers(stream, is_text),
        ],
    )
    has_severity = stream is sys.stderr and is_journal()
    handler.setFormatter(JournalFormatter(lines) if has_severity else lines)
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    # On the handler: a filter of the root logger would not see records of its children.
    handler.addFilter(LogRateLimit())
    root.addHandler(handler)
    set_level(table.level)


def add_handler(lines: logging.Handler) -> None:
    """Also send every logger's records to a handler, until ``remove_handler``."""
    logging.getLogger().addHandler(lines)


def remove_handler(lines: logging.Handler) -> None:
    """Stop sending records to a handler."""
    logging.getLogger().removeHandler(lines)


def is_text(table: LogTable) -> bool:
    """Whether lines on standard error are human-readable text instead of JSON."""
    return _is_text(table, sys.stderr)


def _is_text(table: LogTable, stream: TextIO) -> bool:
    return table.format == "text" or (table.format == "auto" and stream.isatty())


def _with_request(
    logger: object, method: str, line: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Add the current request's ids: the gateway's own, and the ``x-request-id`` if different."""
    request = request_trace.current()
    if request is not None:
        line["request_id"] = request.request_id
        if request.answered_id != request.request_id:
            line["x_request_id"] = request.answered_id
    return line


class _StandardError(logging.StreamHandler[TextIO]):
    """Stream handler that looks up ``sys.stderr`` per record, because progress bars replace it."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """Ignore the stream that the base class sets."""


def set_level(level: str) -> None:
    """Set the level of all loggers."""
    logging.getLogger().setLevel(level.upper())
    # The daemon logs the lifecycle of these libraries itself.
    for library in ("alembic", "asyncio", "uvicorn"):
        logging.getLogger(library).setLevel(max(logging.WARNING, logging.getLogger().level))


def _renderers(stream: TextIO, is_text: bool) -> list[structlog.typing.Processor]:
    if not is_text:
        return [structlog.processors.JSONRenderer()]
    return [_visible, structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=0)]


def _visible(
    logger: object, name: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Escape control characters, so that untrusted text cannot forge lines or control terminals."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = visible(value, keep="\n" if key == "exception" else "")
    return event
