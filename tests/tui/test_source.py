"""Snapshot sources: a daemon and a recording, and the message when nothing comes."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatewayd.wire.snapshot import VERSION, Snapshot
from gatewayd_tui.client import AdminRefused, DaemonSource, DaemonUnreachable, decode
from gatewayd_tui.discovery import NoSocket, find_socket
from gatewayd_tui.recording import Recorded, Recorder, line_of, read
from tests.tui.fake_daemon import FakeDaemon
from tests.tui.samples import snapshot


async def first(source: DaemonSource | Recorded, interval: float = 0.5) -> Snapshot:
    async for found in source.snapshots(interval):
        return found
    raise AssertionError("there is none")


async def why(source: DaemonSource | Recorded) -> str:
    with pytest.raises(DaemonUnreachable) as caught:
        await first(source)
    return str(caught.value)


async def test_a_stream_is_the_daemon_s_snapshots(daemon: FakeDaemon) -> None:
    live = DaemonSource(daemon.path)
    seen = []
    async for found in live.snapshots(0.25):
        seen.append(found)
        if len(seen) == 3:
            break
        daemon.snapshot = snapshot(len(seen))
    await live.close()
    assert seen == [snapshot(0), snapshot(1), snapshot(2)]
    assert daemon.intervals == ["interval=0.25"]


async def test_a_large_snapshot_comes_whole(daemon: FakeDaemon) -> None:
    many = snapshot(samples={f"metric_{n}": float(n) for n in range(100_000)})
    daemon.snapshot = many
    live = DaemonSource(daemon.path)
    assert await first(live) == many
    await live.close()


async def test_a_snapshot_beyond_the_longest_line_is_said(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gatewayd_tui.client._LONGEST_LINE", 1 << 16)
    daemon.snapshot = snapshot(samples={f"metric_{n}": float(n) for n in range(10_000)})
    live = DaemonSource(daemon.path)
    assert await why(live) == f"the daemon at {daemon.path} sent a snapshot that is too long"
    await live.close()


async def test_nobody_at_the_socket(tmp_path: Path) -> None:
    live = DaemonSource(str(tmp_path / "none.sock"))
    assert f"no daemon answers at {tmp_path / 'none.sock'}: No such file" in await why(live)
    with pytest.raises(DaemonUnreachable, match="no daemon answers"):
        await live.call("POST", "/admin/pause")
    await live.close()


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b'{"version": 7, "number": 1}', f"snapshot version 7, this console supports {VERSION}"),
        (b'{"version": 1, "number": 1}', "invalid snapshot: Object missing required field"),
        (b"{nonsense", "invalid snapshot"),
    ],
)
async def test_what_is_not_understood_is_said(
    daemon: FakeDaemon, raw: bytes, sentence: str
) -> None:
    daemon.raw = raw
    live = DaemonSource(daemon.path)
    assert sentence in await why(live)
    await live.close()


async def test_a_stream_that_ends_is_a_daemon_that_ended(daemon: FakeDaemon) -> None:
    live = DaemonSource(daemon.path)
    stream = live.snapshots(0.5)
    await anext(stream)
    daemon.cut = True
    with pytest.raises(DaemonUnreachable, match="stopped"):
        await anext(stream)
    await live.close()


async def test_a_refusal_is_the_daemon_s_own_sentence(daemon: FakeDaemon) -> None:
    daemon.answers["POST", "/admin/pause"] = 400, {"error": {"message": "seconds is too much"}}
    daemon.answers["POST", "/admin/drain"] = 503, "?"
    live = DaemonSource(daemon.path)
    with pytest.raises(AdminRefused, match=r"^seconds is too much$"):
        await live.call("POST", "/admin/pause", {"seconds": 1e9})
    with pytest.raises(AdminRefused, match=r'^"\?"$'):
        await live.call("POST", "/admin/drain")
    assert daemon.calls[0] == ("POST", "/admin/pause", {"seconds": 1e9})
    await live.close()


async def test_a_recording_plays_what_was_recorded_and_goes_on_where_it_was(
    tmp_path: Path,
) -> None:
    file = tmp_path / "some.jsonl"
    recorder = Recorder(file)
    for number in range(4):
        recorder.append(snapshot(number))
    recorder.close()
    assert file.stat().st_mode & 0o777 == 0o600
    source = Recorded(file)
    assert [(await first(source, 0.0)).number for _ in range(2)] == [0, 1]
    assert [each.number async for each in source.snapshots(0.0)] == [2, 3]
    with pytest.raises(AdminRefused, match="is a recording"):
        await source.call("POST", "/admin/drain")


def test_what_a_full_disk_has_not_taken_is_taken_back(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    recorder = Recorder(file)
    recorder.append(snapshot(0))
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 100, most[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            recorder.append(snapshot(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    recorder.close()
    assert list(read(file)) == [snapshot(0)]


def test_a_recording_that_is_none_says_which_line(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    with pytest.raises(DaemonUnreachable, match="cannot be read: No such file"):
        list(read(file))
    file.write_bytes(b"\n")
    with pytest.raises(DaemonUnreachable, match="holds no snapshot"):
        list(read(file))
    file.write_bytes(line_of(snapshot()) + b'{"version": 2}\n')
    with pytest.raises(DaemonUnreachable, match="line 2: the daemon sends snapshot version 2"):
        list(read(file))


def test_fields_that_later_releases_add_are_passed_over() -> None:
    told: dict[str, Any] = json.loads(line_of(snapshot()))
    told["colour"] = "green"
    told["daemon"]["mood"] = 7
    assert decode(json.dumps(told)) == snapshot()
    assert decode(msgspec.json.encode(snapshot())) == snapshot()


def test_the_socket_is_looked_for_where_the_daemon_has_it_from(tmp_path: Path) -> None:
    file = tmp_path / "gatewayd.toml"
    file.write_text('[admin]\nsocket = "/run/a.sock"\n')
    assert find_socket(Path("/x.sock"), file, {"GATEWAYD_ADMIN__SOCKET": "/y.sock"}) == "/x.sock"
    assert find_socket(None, file, {"GATEWAYD_ADMIN__SOCKET": "/y.sock"}) == "/y.sock"
    assert find_socket(None, file, {}) == "/run/a.sock"
    assert find_socket(None, None, {"GATEWAYD_CONFIG": str(file)}) == "/run/a.sock"
    for text, sentence in [("", r"has no \[admin\] socket"), ("[[", "cannot be read")]:
        file.write_text(text)
        with pytest.raises(NoSocket, match=sentence):
            find_socket(None, file, {})
    with pytest.raises(NoSocket, match="--socket"):
        find_socket(None, None, {})
