"""Hot swap: strategies and limits of a running daemon, by admin socket and SIGHUP."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatewayd.admin.client import AdminError, call
from tests.daemon.test_blocked_strategies import installed

Start = Callable[..., Any]
NANO = ("-m", "gatewayd", "serve", "--port", "0")
OFFERS: list[tuple[str, Any, dict[str, Any]]] = [
    ("scheduler", "fcfs", {}),
    ("scheduler", "fcfs", {"max_prefill_chunk": 33}),
    ("scheduler", "priority", {"batch": 2.0}),
    ("prefix_cache", "none", {}),
    ("prefix_cache", "hash", {}),
    ("eviction", "lru", {}),
    ("prefix_cache", "radix", {}),
    ("eviction", "lfu", {}),
    ("eviction", "cost", {}),
    ("eviction", "retention", {}),
    ("preemption", "recompute", {}),
    ("preemption", "swap", {}),
    ("drafter", "none", {}),
    ("drafter", "ngram", {}),
    ("drafter", "lookahead", {}),
    ("spec_controller", "fixed", {"drafts": 3}),
    ("spec_controller", "adaptive", {}),
    ("router", "prefix", {}),
    ("router", "least_loaded", {}),
    ("logits_processor", ["bias"], {}),
    ("logits_processor", ["penalties", "bias", "min_tokens"], {}),
]


def swap(path: Path, kind: str, name: Any, **settings: Any) -> Any:
    body = {"name": name, "settings": settings}
    return call(str(path), "PUT", f"/admin/strategies/{kind}", body)


def rows(path: Path, engine: str = "0") -> dict[tuple[str, str], Any]:
    found = call(str(path), "GET", "/admin/strategies")["strategies"]
    return {(row["kind"], row["name"]): row for row in found if row["engine"] == engine}


@pytest.fixture
def nano(start_daemon: Start, tmp_path: Path) -> Any:
    """A daemon over the embedded model; its socket is ``path``."""
    path = tmp_path / "admin.sock"
    file = tmp_path / "g.toml"
    file.write_text(f'[admin]\nsocket = "{path}"\n[engine]\nthreads = 1\n')
    daemon = start_daemon(NANO, env={"GATEWAYD_CONFIG": str(file), "GATEWAYD_ENGINE__THREADS": "1"})
    daemon.path = path
    daemon.file = file
    return daemon


def test_the_socket_is_for_owner_and_group_and_ends_with_the_daemon(nano: Any) -> None:
    assert stat.S_IMODE(nano.path.stat().st_mode) == 0o660
    assert nano.stop() == 0
    assert not nano.path.exists()


def test_a_strategy_is_swapped_refused_listed_and_comes_back_after_a_loss(nano: Any) -> None:
    answer = swap(nano.path, "scheduler", "priority", batch=2.0)
    assert answer == {"kind": "scheduler", "names": ["priority"], "has_state": False}
    assert swap(nano.path, "prefix_cache", "hash")["has_state"]
    assert nano.said("scheduler is now priority instead of fcfs, by uid")
    for kind, name, settings, words in (
        ("scheduler", "priorty", {}, "did you mean scheduler.priority"),
        ("scheduler", "priority", {"batch": -1}, "batch is -1"),
        ("sched", "fcfs", {}, "there is no kind 'sched'"),
        ("executor", "local", {}, "needs a restart"),
        ("quantizer", "none", {}, "quantizer cannot be changed while engines run"),
        ("router", "prefx", {}, "did you mean router.prefix"),
    ):
        with pytest.raises(AdminError, match=words):
            swap(nano.path, kind, name, **settings)
    nano.kill_engine()
    deadline = time.monotonic() + 30
    while nano.readyz()[1]["replicas"][0]["restarts"] == 0 or not rows(nano.path):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert {name for kind, name in rows(nano.path) if kind == "scheduler"} == {"priority"}
    figures = httpx.get(f"{nano.url}/metrics").text
    assert 'gatewayd_strategy_swaps_total{kind="scheduler",model_name="nano"} 1.0' in figures
    assert "gatewayd_strategy_seconds_total" in figures


@pytest.mark.parametrize(
    "at_import", [pytest.param("ctypes.string_at(1)\n", marks=pytest.mark.slow), "os._exit(0)\n"]
)
def test_a_plugin_that_crashes_when_it_is_imported_is_refused(
    start_daemon: Start, tmp_path: Path, at_import: str
) -> None:
    path = tmp_path / "admin.sock"
    env = installed(tmp_path, "pass", at_import) | {
        "GATEWAYD_SCHEDULER__STRATEGY": "fcfs",
        "GATEWAYD_ADMIN__SOCKET": str(path),
    }
    daemon = start_daemon(NANO, env=env)
    with pytest.raises(AdminError, match="stuck ends the process that loads it, with "):
        swap(path, "scheduler", "stuck")
    assert daemon.readyz()[0] == 200
    assert daemon.stop() == 0


def test_limits_are_bounded_by_those_of_the_start(nano: Any) -> None:
    body = {"max_batch_tokens": 64, "max_waiting_requests": 3}
    now = call(str(nano.path), "PATCH", "/admin/limits", body)
    assert (now["max_batch_tokens"], now["max_waiting_requests"]) == (64, 3)
    with pytest.raises(AdminError, match="at most 512"):
        call(str(nano.path), "PATCH", "/admin/limits", {"max_batch_tokens": 513})
    with pytest.raises(AdminError, match="max_running"):
        call(str(nano.path), "PATCH", "/admin/limits", {"max_running": 5})
    httpx.post(
        f"{nano.url}/v1/completions",
        json={"model": "nano", "prompt": list(range(20, 220)), "max_tokens": 2},
    ).raise_for_status()
    figures = httpx.get(f"{nano.url}/metrics").text
    assert (
        'vllm:iteration_tokens_total_bucket{engine="0",le="64.0",model_name="nano"} 5.0' in figures
    )


def test_sighup_swaps_what_the_file_says_and_keeps_the_rest(nano: Any) -> None:
    text = nano.file.read_text()
    nano.file.write_text(
        text + 'max_running = 9\n[scheduler]\nstrategy = "priority"\n[queue]\n'
        "max_waiting_requests = 7\n"
    )
    nano.process.send_signal(signal.SIGHUP)
    nano._wait("scheduler is now priority instead of fcfs, by SIGHUP", 30)
    nano._wait("limit max_waiting_requests set to 7", 30)
    assert nano.said("restart required: [engine] max_running has changed")
    nano.file.write_text(text + '[scheduler]\nstrategy = "fcfs"\n[scheduler.fcfs]\nchunk = 3\n')
    nano.process.send_signal(signal.SIGHUP)
    nano._wait("configuration not reloaded", 30)
    assert nano.said("chunk is unknown")
    slots = call(str(nano.path), "GET", "/admin/strategies")["slots"]
    assert next(s["names"] for s in slots if s["kind"] == "scheduler") == ["priority"]
    plugins = call(str(nano.path), "GET", "/admin/plugins")["plugins"]
    states = {row["name"]: row["state"] for row in plugins if row["kind"] == "scheduler"}
    assert {name for name, state in states.items() if state == "enabled"} == {"priority"}
    found = call(str(nano.path), "GET", "/admin/plugins/scheduler/fcfs")["settings"]
    assert "max_prefill_chunk" in [each["name"] for each in found]


def test_the_command_line_swaps_and_shows(nano: Any) -> None:
    def run(*words: str) -> str:
        command = [sys.executable, "-m", "gatewayd", *words, "--socket", str(nano.path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    assert "scheduler is fcfs now, " in run(
        "swap", "scheduler", "fcfs", "--set", "max_prefill_chunk=64"
    )
    assert "bias, penalties now" in run("swap", "logits_processor", "bias,penalties")
    assert "chunk is unknown" in run("swap", "scheduler", "fcfs", "--set", "chunk=64")
    assert "fcfs" in run("strategies")
    nano.stop()
    assert "no daemon answers at" in run("strategies")


def test_an_old_socket_is_replaced_and_one_in_use_is_not(
    start_daemon: Start, tmp_path: Path
) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    daemon = start_daemon(**{"admin.socket": path})
    assert call(str(path), "GET", "/admin/strategies")["slots"]
    second = start_daemon(wait=False, **{"admin.socket": path})
    assert second.process.wait(30) == 1
    assert second.said("another daemon listens there")
    assert daemon.is_live()


async def load(daemon: Any, client: Any, until: asyncio.Event, wanted: dict[str, str]) -> int:
    """Requests, one after the other, whose greedy texts must stay as they were."""
    served, rng = 0, random.Random(len(wanted))
    while not until.is_set():
        prompt = rng.choice(list(wanted))
        answer = await client.complete(daemon, prompt, 24)
        assert answer.error is None
        assert answer.is_complete
        assert answer.text == wanted[prompt]
        served += 1
    return served


@pytest.mark.parametrize("num_swaps", [24, pytest.param(1000, marks=pytest.mark.slow)])
async def test_random_swaps_under_load_fail_nothing(nano: Any, client: Any, num_swaps: int) -> None:
    prompts = [f"{k} is a number and this is a story about it. " * 3 for k in range(6)]
    wanted = {p: (await client.complete(nano, p, 24)).text for p in prompts}
    pid = nano.engine_pid

    def held() -> tuple[int, int]:
        engine = Path(f"/proc/{pid}")
        return len(os.listdir(engine / "fd")), len(os.listdir(engine / "task"))

    rng = random.Random(num_swaps)
    for kind, name, settings in OFFERS:
        await asyncio.to_thread(swap, nano.path, kind, name, **settings)
    before = held()
    over = asyncio.Event()
    tasks = [asyncio.create_task(load(nano, client, over, wanted)) for _ in range(4)]
    for _ in range(num_swaps):
        kind, name, settings = rng.choice([*OFFERS, ("limits", "", {})])
        if kind == "limits":
            limits = {"max_batch_tokens": rng.choice([64, 512])}
            await asyncio.to_thread(call, str(nano.path), "PATCH", "/admin/limits", limits)
        else:
            await asyncio.to_thread(swap, nano.path, kind, name, **settings)
        await asyncio.sleep(0.005)
    over.set()
    assert sum(await asyncio.gather(*tasks)) > num_swaps // 20
    assert nano.engine_pid == pid
    async with asyncio.timeout(30):
        while held() != before:
            await asyncio.sleep(0.05)
    assert nano.readyz()[1]["replicas"][0]["restarts"] == 0
