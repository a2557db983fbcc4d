"""Engine loss: a killed, hung or unstartable engine under real clients."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import warm

Start = Callable[..., Any]


async def _until(condition: Callable[[], bool], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


async def test_killing_the_engine_ends_started_streams_and_loses_no_queued_request(
    start_daemon: Start, client: Any, make_answer: Any
) -> None:
    env = {"FAKE_STEP_MS": "10", "FAKE_MAX_RUNNING": "8"}
    daemon = start_daemon(env=env)
    answers = [make_answer() for _ in range(32)]
    tasks = [
        asyncio.create_task(client.complete(daemon, f"n {k}", 100, answer=answer))
        for k, answer in enumerate(answers)
    ]
    await _until(lambda: sum(a.first.is_set() for a in answers) >= 8)
    killed = daemon.kill_engine()
    at = time.monotonic()
    await asyncio.wait_for(asyncio.gather(*tasks), 60)

    broken = [a for a in answers if a.error]
    whole = [a for a in answers if a.is_complete and not a.error]
    assert len(broken) + len(whole) == 32
    assert {a.error["code"] for a in broken} == {"engine_restarted"}
    assert len(broken) == 8
    assert all(a.status == 200 for a in answers)
    status, body = daemon.readyz()
    assert (status, body["status"]) == (200, "ready")
    assert body["replicas"][0]["restarts"] == 1
    assert body["replicas"][0]["pid"] != killed
    assert not _is_alive(killed)
    assert time.monotonic() - at < 60


async def test_answers_that_are_not_streamed_survive_the_engine(
    start_daemon: Start, client: Any
) -> None:
    daemon = start_daemon(env={"FAKE_STEP_MS": "10"})
    expected = await client.complete(daemon, "def f", 40, stream=False)
    task = asyncio.create_task(client.complete(daemon, "def f", 40, stream=False))
    await _until(lambda: daemon.readyz()[1]["replicas"][0]["num_running"] == 1)
    daemon.kill_engine()
    answer = await asyncio.wait_for(task, 30)
    assert answer.error is None
    assert answer.text == expected.text


async def test_readiness_tells_the_truth_while_an_engine_restarts(
    start_daemon: Start, client: Any
) -> None:
    daemon = start_daemon(env={"FAKE_LOAD_MS": "1200"})
    daemon.kill_engine()
    await _until(lambda: daemon.readyz()[0] == 503)
    began = time.monotonic()
    answer = asyncio.create_task(client.complete(daemon, "x", 3))
    await _until(lambda: daemon.readyz()[0] == 200)
    assert 0.4 < time.monotonic() - began < 30
    assert (await answer).is_complete
    assert daemon.is_live()


async def test_the_port_is_open_before_the_model_is_loaded(
    start_daemon: Start, client: Any
) -> None:
    daemon = start_daemon(wait=False, env={"FAKE_LOAD_MS": "1000"})
    daemon.wait_listening()
    assert daemon.readyz()[0] == 503
    assert daemon.is_live()
    daemon.wait_ready()
    assert daemon.readyz()[0] == 200


def test_a_daemon_whose_engines_cannot_start_ends_with_the_reason(start_daemon: Start) -> None:
    daemon = start_daemon(wait=False, env={"FAKE_FAULTS": "load_exit"})
    assert daemon.process.wait(30) == 1
    assert daemon.said("cannot start any engine")
    assert daemon.said("exit status 3")


def test_a_model_that_cannot_be_served_ends_the_daemon_at_once(start_daemon: Start) -> None:
    daemon = start_daemon(wait=False, env={"FAKE_FAULTS": "load_fatal"})
    assert daemon.process.wait(30) == 1
    assert daemon.said("the model folder has no config.json")


async def test_engines_die_with_a_killed_daemon(start_daemon: Start) -> None:
    # A forked engine would be killed by the process that has forked it.
    daemon = start_daemon(env={warm.COLD: "1"})
    pid = daemon.engine_pid
    assert _is_alive(pid)
    daemon.process.kill()
    daemon.process.wait()
    await _until(lambda: not _is_alive(pid))


async def test_restarts_under_load_leak_nothing(start_daemon: Start, client: Any) -> None:
    daemon = start_daemon(env={"FAKE_STEP_MS": "2"})
    proc = Path(f"/proc/{daemon.process.pid}")

    def held() -> tuple[int, int]:
        return len(os.listdir(proc / "fd")), len(os.listdir(proc / "task"))

    async def serve_some() -> None:
        await asyncio.gather(*(client.complete(daemon, f"n {k}", 5) for k in range(8)))

    await serve_some()
    before = held()
    for _ in range(8):
        killed = daemon.kill_engine()
        await _until(lambda pid=killed: daemon.engine_pid not in (pid, None))  # type: ignore[misc]
        await _until(lambda: daemon.readyz()[0] == 200)
        await serve_some()
    assert daemon.readyz()[1]["replicas"][0]["restarts"] == 8
    after = held()
    assert abs(after[0] - before[0]) <= 2
    assert abs(after[1] - before[1]) <= 2
