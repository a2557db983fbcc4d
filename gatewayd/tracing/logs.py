"""Logging of the daemon process: structlog in front of the standard library's loggers.

Everything goes to standard error, one event a line; where that is systemd's journal, with how
urgent it is. Nothing that a client sent is logged but its request id.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog

from gatewayd.config.tables import LogTable
from gatewayd.tracing import request_trace
from gatewayd.tracing.log_rate_limit import LogRateLimit
from gatewayd_engine.process.journal import Urgent, is_journal
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
        foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *_renderers(stream, is_text),
        ],
    )
    is_told_apart = stream is sys.stderr and is_journal()
    handler.setFormatter(Urgent(lines) if is_told_apart else lines)
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    handler.addFilter(LogRateLimit())
    root.addHandler(handler)
    set_level(table.level)


def keep(lines: logging.Handler) -> None:
    """Send every logger's records to this, too, until ``leave``."""
    logging.getLogger().addHandler(lines)


def leave(lines: logging.Handler) -> None:
    """Send it nothing more."""
    logging.getLogger().removeHandler(lines)


def is_text(table: LogTable) -> bool:
    """Whether lines on standard error are for people; otherwise they are JSON."""
    return _is_text(table, sys.stderr)


def _is_text(table: LogTable, stream: TextIO) -> bool:
    return table.format == "text" or (table.format == "auto" and stream.isatty())


def _with_request(
    logger: object, method: str, line: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Say which request a line is about: the gateway's own id, and what its client is told."""
    request = request_trace.current()
    if request is not None:
        line["request_id"] = request.request_id
        if request.answered_id != request.request_id:
            line["x_request_id"] = request.answered_id
    return line


class _StandardError(logging.StreamHandler[TextIO]):
    """Looks standard error up for each record: a progress bar stands in for it for a while."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """The base class sets it; there is nothing to keep."""


def set_level(level: str) -> None:
    """Change what is logged from now on."""
    logging.getLogger().setLevel(level.upper())
    # Of their own lives the daemon tells better.
    for library in ("alembic", "asyncio", "uvicorn"):
        logging.getLogger(library).setLevel(max(logging.WARNING, logging.getLogger().level))


def _renderers(stream: TextIO, is_text: bool) -> list[structlog.typing.Processor]:
    if not is_text:
        return [structlog.processors.JSONRenderer()]
    return [_visible, structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=0)]


def _visible(
    logger: object, name: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """What is told may be a stranger's: it writes no lines of its own, and drives no terminal."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = visible(value, keep="\n" if key == "exception" else "")
    return event
