"""``gatewayd bench serve``: a real daemon on the embedded model, and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gatewayd.cli.bench.load import LoadTarget
from gatewayd.cli.bench.served.daemon import DaemonError, serving
from gatewayd.cli.bench.served.measure import level_rows, run
from gatewayd.cli.bench.served.workloads import WORKLOADS
from gatewayd.cli.bench.sweep import LoadLevel
from gatewayd.cli.client.api import ApiClient
from tests.daemon.forked_daemons import SERVE, forker

COMMAND = (sys.executable, "-m", "gatewayd", "bench", "serve")


def test_the_document_adds_up_and_the_daemon_is_configured_by_the_options_alone(
    tmp_path: Path,
) -> None:
    # A daemon that read these would not start.
    env = {"GATEWAYD_CONFIG": "/nowhere.toml", "GATEWAYD_API_KEY": "a-long-key"}
    file = tmp_path / "serve.json"
    done = subprocess.run(
        [*COMMAND, "--scale", "0.05", "--only", "c256,c1", "--json", "--out", str(file)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert json.loads(file.read_text()) == document
    one, many = document["workloads"]
    assert [(w["workload"], w["load"], w["value"]) for w in (one, many)] == [
        ("c1", "concurrency", 1),
        ("c256", "concurrency", 13),
    ]
    for level, requests in ((one, 1), (many, 51)):
        assert (level["succeeded"], level["errors"]) == (requests, {})
        # Sent as text, and as long as meant.
        assert level["prompt_tokens"] == 26 * requests
        assert level["output_tokens"] == 6 * requests
        assert level["output_tokens_per_second"] == pytest.approx(6 * requests / level["seconds"])
    figures = [(c["workload"], c["figure"]) for c in document["comparisons"]]
    assert figures == [
        ("c1", "ttft_p50_ms"),
        ("c1", "tpot_p50_ms"),
        ("c256", "output_tokens_per_second"),
    ]
    wait = document["comparisons"][0]
    assert wait["measured"] == one["ttft_ms"]["p50"]
    assert wait["times_reference"] == pytest.approx(wait["reference"] / wait["measured"])
    assert all(c["kept"] is None for c in document["comparisons"])


def test_a_part_of_a_level_has_fewer_in_flight_but_the_same_rate() -> None:
    many = WORKLOADS["c256"].scaled(0.1)
    assert (many.load, many.requests, many.warmup) == (LoadLevel("concurrency", 26), 102, 26)
    assert (many.input_tokens, many.output_tokens) == (51, 13)
    assert WORKLOADS["r10"].scaled(0.1).load == LoadLevel("rate", 10)


async def test_a_level_with_failures_is_not_compared(server: object) -> None:
    server.fail_every = 3  # type: ignore[attr-defined]
    words = [" a", " b"]
    async with ApiClient(server.url) as client:  # type: ignore[attr-defined]
        target = LoadTarget(client, "fake")
        (outcome,) = [one async for one in run(target, ["c1"], words, 0.25)]
    assert outcome.level.errors
    assert outcome.comparisons() == []
    (row,) = level_rows([outcome]).rows
    assert row[:4] == ["c1", "concurrency 1", "2", "1"]


async def test_a_daemon_that_cannot_serve_says_why() -> None:
    with pytest.raises(DaemonError, match="/nowhere"):
        async with serving({"GATEWAYD_MODEL__PATH": "/nowhere"}):
            pass


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: object, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
async def test_the_daemon_keeps_its_store_to_itself_beside_the_users_and_ends_with_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    log = tmp_path / "log"
    users = forker().start([*SERVE, "--port", "0"], dict(os.environ), log)
    try:
        wait_until(lambda: (tmp_path / "gatewayd" / "lock").exists())
        before = children(os.getpid())
        async with serving({}) as url, ApiClient(url) as client:
            assert await client.models() == ["nano"]
            (daemon,) = set(children(os.getpid())) - set(before) - {users.pid}
            opened = open_files(daemon)
            assert not [file for file in opened if file.startswith(str(tmp_path))]
            (database,) = {file for file in opened if file.endswith("/gatewayd.db")}
            # The folder of its log as well.
            assert Path(os.readlink(f"/proc/{daemon}/fd/2")) == Path(database).parents[1] / "log"
        assert not is_alive(daemon)
        assert not Path(database).parents[1].exists()
        assert users.poll() is None
    finally:
        users.kill()
        users.wait(30)


def open_files(pid: int) -> list[str]:
    return [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells children on Linux only")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_daemon_and_its_engine_end_however_the_bench_ends(
    number: signal.Signals, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--only", "r10"],
        # Killed, it leaves its log behind.
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
    )
    family: list[int] = []

    def has_engine() -> bool:
        daemons = children(process.pid)
        engines = [engine for daemon in daemons for engine in children(daemon)]
        family[:] = daemons + engines
        return bool(engines)

    try:
        wait_until(has_engine)
        process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode != 0
        wait_until(lambda: not any(map(is_alive, family)))
    finally:
        process.kill()
        for pid in filter(is_alive, family):
            os.kill(pid, signal.SIGKILL)
