"""Watchers: shared snapshots, no queue for slow readers, no cost without any."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from starlette.routing import Router

from gatewayd.admin.app import AdminErrorMiddleware
from gatewayd.admin.client import AdminError, call, stream_snapshots
from gatewayd.admin.server import AdminServer
from gatewayd.admin.snapshots.routes import PrefixRoute, snapshot_routes
from gatewayd.admin.snapshots.snapshot import Snapshots
from gatewayd.admin.watchers import MOST_WATCHERS, SnapshotBroadcast, TooManyWatchers, WatcherEnded
from gatewayd.tracing.log_buffer import LogLines
from gatewayd.wire.snapshot import DaemonView, LogView, Snapshot
from tests.virtual_time import leaping_time


def snapshot(number: int, padding: str = "") -> Snapshot:
    daemon = DaemonView(
        version="1",
        pid=1,
        url="http://x",
        model=padding,
        state="ready",
        uptime_seconds=1.0,
        troubles=[],
    )
    names = ("engines", "latencies", "waiting", "running", "kv", "slo", "tenants", "strategies")
    empty: dict[str, Any] = {name: [] for name in names}
    return Snapshot(
        number=number,
        unix=0.0,
        daemon=daemon,
        more_waiting=0,
        more_running=0,
        limits={},
        samples={},
        logs=[],
        **empty,
    )


class Source:
    """Makes snapshots, and counts them."""

    def __init__(self, padding: str = "") -> None:
        self.made = 0
        self._padding = padding

    async def build(self) -> Snapshot:
        self.made += 1
        return snapshot(self.made, self._padding)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def test_watchers_share_what_the_fastest_wants() -> None:
    source = Source()
    watching = SnapshotBroadcast(source.build)
    fast, same, slow = (watching.add(interval) for interval in (1.0, 1.0, 4.0))

    async def read(watcher: Any) -> list[Snapshot]:
        found = []
        while True:
            try:
                found.append(await watching.next(watcher))
            except WatcherEnded:
                return found

    with leaping_time():
        readers = [asyncio.create_task(read(watcher)) for watcher in (fast, same, slow)]
        await asyncio.sleep(9.5)
        watching.close()
        of_fast, of_same, of_slow = await asyncio.gather(*readers)
    assert all(a is b for a, b in zip(of_fast, of_same, strict=True))
    assert {one.number for one in of_slow} <= {one.number for one in of_fast}
    assert source.made == len(of_fast)
    assert (len(of_fast), len(of_slow)) == (10, 3)


async def test_nothing_is_made_for_who_is_busy_or_has_left() -> None:
    source = Source()
    watching = SnapshotBroadcast(source.build)
    watcher = watching.add(0.1)
    assert (await watching.next(watcher)).number == 1
    await asyncio.sleep(0.25)  # it does something else
    assert source.made == 1
    assert (await watching.next(watcher)).number == 2
    watching.remove(watcher)
    await asyncio.sleep(0.01)
    assert (len(watching), watching.is_making, source.made) == (0, False, 2)
    again = watching.add(0.1)
    assert (await watching.next(again)).number == 3


async def test_there_is_room_for_eight() -> None:
    watching = SnapshotBroadcast(Source().build)
    watchers = [watching.add(60) for _ in range(MOST_WATCHERS)]
    with pytest.raises(TooManyWatchers, match="8 streams"):
        watching.add(60)
    watching.remove(watchers[0])
    watching.add(60)


async def test_a_fault_is_told_to_who_waits_and_the_next_one_is_made() -> None:
    numbers = itertools.count(1)

    async def make() -> Snapshot:
        if (number := next(numbers)) == 1:
            raise ValueError("no")
        return snapshot(number)

    watching = SnapshotBroadcast(make)
    watcher = watching.add(0.1)
    with pytest.raises(ValueError, match="no"):
        await watching.next(watcher)
    assert (await watching.next(watcher)).number == 2


# Over a socket


class Served:
    """The routes on a socket."""

    def __init__(self, path: Path, source: Source) -> None:
        self.path = str(path)
        self.source = source
        self.lines = LogLines()
        self.watching = SnapshotBroadcast(source.build)


@asynccontextmanager
async def served(tmp_path: Path, source: Source | None = None) -> AsyncIterator[Served]:
    found = Served(tmp_path / "a.sock", source or Source())
    prefixes = cast(PrefixRoute, None)
    routes = snapshot_routes(cast(Snapshots, found.source), found.watching, found.lines, prefixes)
    server = AdminServer(AdminErrorMiddleware(Router(routes)), found.path)
    running = asyncio.create_task(server.run_until_stopped())
    try:
        yield found
    finally:
        found.watching.close()
        server.should_exit = True
        await running


def say(lines: LogLines, message: str) -> None:
    lines.handle(logging.LogRecord("gatewayd.x", logging.INFO, "", 0, message, None, None))


async def test_a_stream_has_snapshots_with_the_lines_in_between(tmp_path: Path) -> None:
    async with served(tmp_path) as found:
        for number in range(250):
            say(found.lines, f"line {number}")
        single = await asyncio.to_thread(call, found.path, "GET", "/admin/snapshot")
        assert [line["number"] for line in single["logs"]] == list(range(51, 251))
        stream = stream_snapshots(found.path, 0.1)
        first = await asyncio.to_thread(next, stream)
        assert [line.number for line in first.logs] == list(range(51, 251))
        say(found.lines, "one more")
        second = await asyncio.to_thread(next, stream)
        assert [line.message for line in second.logs] == ["one more"]
        third = await asyncio.to_thread(next, stream)
        assert third == snapshot(third.number)
        assert first.number < second.number < third.number
        found.watching.close()
        assert await asyncio.to_thread(list, stream) == []


async def test_who_does_not_read_misses_snapshots_and_holds_up_nobody(tmp_path: Path) -> None:
    async with served(tmp_path, Source(padding="x" * 100_000)) as found:
        slow = socket.socket(socket.AF_UNIX)
        slow.connect(found.path)
        slow.sendall(b"GET /admin/stream?interval=0.1 HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(lambda: found.source.made >= 3)
        while True:  # until the socket is full: then none is made
            made = found.source.made
            await asyncio.sleep(0.25)
            if made == found.source.made:
                break
        stream = stream_snapshots(found.path, 0.1)
        numbers = [(await asyncio.to_thread(next, stream)).number for _ in range(4)]
        assert numbers == list(range(made + 1, made + 5))
        seen = await asyncio.to_thread(numbers_on, slow, made)
        assert seen[:-1] == list(range(1, made + 1))
        assert seen[-1] >= made + 4, "what it missed is made up for"
        slow.close()
        stream.close()
        await until(lambda: not len(found.watching))
        made = found.source.made
        await asyncio.sleep(0.25)
        assert found.source.made == made


async def test_a_stream_far_from_its_next_snapshot_is_kept_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gatewayd.admin.snapshots.routes._PING_SECONDS", 0.05)
    async with served(tmp_path) as found:
        reader, writer = await asyncio.open_unix_connection(found.path)
        writer.write(b"GET /admin/stream?interval=60 HTTP/1.1\r\nhost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"content-type: text/event-stream" in head
        await reader.readuntil(b": ping\n\n")
        await reader.readuntil(b": ping\n\n")
        assert found.source.made == 1
        writer.close()
        await until(lambda: not len(found.watching))


def numbers_on(stream: socket.socket, last: int) -> list[int]:
    """Read as far as the first snapshot behind the last one."""
    found: list[int] = []
    with stream.makefile("rb") as lines:
        while not found or found[-1] <= last:
            line = lines.readline()
            if line.startswith(b"data: "):
                found.append(json.loads(line[6:])["number"])
    return found


@pytest.mark.parametrize("text", ["0.05", "61", "x", "nan", "-1", ""])
async def test_an_interval_out_of_bounds_is_refused(tmp_path: Path, text: str) -> None:
    async with served(tmp_path) as found:
        with pytest.raises(AdminError, match=r"it must be from 0\.1 to 60 seconds"):
            await asyncio.to_thread(call, found.path, "GET", f"/admin/stream?interval={text}")
        assert len(found.watching) == 0


def test_the_form_ends_with_its_lines() -> None:
    """Lines are put into what was encoded once for all."""
    assert msgspec.json.encode(snapshot(1)).endswith(b'"logs":[]}')
    assert LogView.__struct_fields__[0] == "number"
