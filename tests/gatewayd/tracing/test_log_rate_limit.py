"""Log rate limit: what unauthenticated clients can make the daemon write is bounded."""

from __future__ import annotations

import asyncio
import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import gatewayd
from gatewayd.config.tables import LogTable
from gatewayd.http.asgi import Receive, Scope, Send
from gatewayd.tracing import logs
from gatewayd.tracing.log_rate_limit import EXEMPT, MOST, LogRateLimit
from tests.gatewayd.http.server.in_memory_connections import Connection


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What a daemon writes."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", root.handlers[:])
    levels = {name: logging.getLogger(name).level for name in ("", "alembic", "asyncio", "uvicorn")}
    stream = io.StringIO()
    logs.configure(LogTable(), stream)
    yield stream
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


async def fails(scope: Scope, receive: Receive, send: Send) -> None:
    """Raises from deep below, after its answer has begun."""
    await send({"type": "http.response.start", "status": 200, "headers": []})

    def down(depth: int) -> float:
        return up(depth) if depth else 1 / 0

    def up(depth: int) -> float:
        return down(depth - 1)

    down(300)


async def test_a_request_that_always_fails_does_not_fill_the_journal(lines: io.StringIO) -> None:
    for _ in range(2 * MOST):
        connection = Connection(fails)
        await connection.send([b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"])
        await connection.answers(4)
        await connection.close()
    written = lines.getvalue()
    assert 1 <= written.count("ZeroDivisionError") <= MOST
    assert "in down" in written
    # With all their frames they are megabytes.
    assert len(written) < MOST * 5000


async def test_a_callback_that_always_fails_does_not_fill_it_either(lines: io.StringIO) -> None:
    def bad() -> None:
        raise RuntimeError("of a stranger")

    loop = asyncio.get_running_loop()
    for _ in range(500):
        loop.call_soon(bad)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 1 <= lines.getvalue().count("RuntimeError: of a stranger") <= MOST


def test_how_many_were_not_told_is_told_later() -> None:
    now = 0.0
    limit = LogRateLimit(2, 60, lambda: now)
    told: list[str] = []

    def say(level: int = logging.ERROR) -> None:
        record = logging.LogRecord("asyncio", level, "x", 1, "failed %d", (7,), None)
        if limit.filter(record):
            told.append(record.getMessage())

    for _ in range(5):
        say()
    say(logging.INFO)
    assert told == ["failed 7"] * 3
    now = 60.0
    say()
    say()
    assert told[3:] == ["failed 7 (3 earlier records were dropped)", "failed 7"]


def loggers_of_the_package() -> set[str]:
    """The name of every logger that a module asks for, read from the sources."""
    root = Path(gatewayd.__file__).parent
    names = set()
    for file in root.rglob("*.py"):
        module = ".".join(("gatewayd", *file.relative_to(root).with_suffix("").parts))
        for asked in re.findall(r"getLogger\(([^)]+)\)", file.read_text()):
            if asked == "__name__":
                names.add(module.removesuffix(".__init__"))
            elif asked.startswith(("'", '"')):
                names.add(asked.strip("'\""))
    return names


def test_every_logger_of_the_daemon_is_limited_but_for_those_listed() -> None:
    names = loggers_of_the_package()
    assert len(names) > 40
    assert names >= {"gatewayd.http", "gatewayd.store.errors", "gatewayd.engines.job"}
    limit, passed = LogRateLimit(clock=lambda: 1.0), {}
    for name in names | EXEMPT | {"asyncio", "uvicorn.error"}:
        records = (
            logging.LogRecord(name, level, "x", 1, "failed", (), None)
            for level in (logging.WARNING, logging.ERROR, logging.CRITICAL)
            for _ in range(100)
        )
        passed[name] = sum(map(limit.filter, records))
    assert passed == {name: 300 if name in EXEMPT else MOST for name in passed}


def test_no_logger_is_exempt_that_is_not_there() -> None:
    assert loggers_of_the_package() >= EXEMPT


def test_a_full_disk_that_fails_each_request_does_not_fill_the_journal(
    lines: io.StringIO,
) -> None:
    log = logging.getLogger("gatewayd.store.errors")
    for number in range(1000):
        log.error("the store cannot be written: request %d", number)
    logging.getLogger("gatewayd.store.location").error("another of them")
    assert lines.getvalue().count("cannot be written") == MOST
    assert "another of them" in lines.getvalue()


def test_one_who_has_many_addresses_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    from gatewayd.errors import TooManyWrongKeys, Unauthorized
    from gatewayd.http.server.authentication import KeyCheck

    keys = KeyCheck("right")
    with caplog.at_level(logging.WARNING, "gatewayd.http.server.authentication"):
        for number in range(40):
            headers = [(b"x-api-key", b"wrong")]
            with pytest.raises((Unauthorized, TooManyWrongKeys)):
                keys.check({"client": (f"2001:db8::{number:x}", 1), "headers": headers})
    assert len(caplog.records) == 1


def test_ends_of_the_audit_are_logged_at_every_level_and_never_dropped(
    lines: io.StringIO, tmp_path: Path
) -> None:
    from gatewayd.tenants.tamper_evidence import audit
    from gatewayd.tenants.tamper_evidence.secret import ServerSecret

    logs.set_level("error")
    for seq in range(1, 3 * MOST):
        audit.write_head(
            ServerSecret(b"s" * 32), tmp_path / audit.NAME, audit.Head(seq, "abc"), seq
        )
    assert lines.getvalue().count("the audit ends with") == 3 * MOST - 1
