"""Daemon lifecycle: signals, drain, messages for operators."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

Start = Callable[..., Any]


async def _streaming(client: Any, daemon: Any, make_answer: Any, tokens: int) -> tuple[Any, Any]:
    """A stream that has begun, and the task that reads it."""
    answer = make_answer()
    task = asyncio.create_task(client.complete(daemon, "x", tokens, answer=answer))
    await asyncio.wait_for(answer.first.wait(), 30)
    return answer, task


async def test_sigterm_lets_streams_finish_and_takes_no_more(
    start_daemon: Start, client: Any, make_answer: Any
) -> None:
    daemon = start_daemon(env={"FAKE_STEP_MS": "10"})
    _, task = await _streaming(client, daemon, make_answer, 100)
    daemon.process.send_signal(signal.SIGTERM)
    answer = await asyncio.wait_for(task, 30)
    assert answer.is_complete
    assert answer.error is None
    assert await asyncio.to_thread(daemon.process.wait, 30) == 0
    port = int(daemon.url.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1)


async def test_a_draining_daemon_says_so_to_whoever_asks(
    start_daemon: Start, client: Any, make_answer: Any
) -> None:
    daemon = start_daemon(env={"FAKE_STEP_MS": "10"})
    _, task = await _streaming(client, daemon, make_answer, 200)
    daemon.process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(daemon._wait, "draining requests", 30)
    async with httpx.AsyncClient(base_url=daemon.url) as fresh:
        for path, status in (("/readyz", 503), ("/health", 503), ("/livez", 200)):
            assert (await fresh.get(path)).status_code == status
        body = {"model": "nano", "prompt": "x"}
        refused = await fresh.post("/v1/completions", json=body)
        figures = (await fresh.get("/metrics")).text
    assert not task.done()
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "server_shutdown"
    assert refused.headers["retry-after"] == "1"
    assert 'vllm:num_requests_running{engine="0",model_name="nano"} 1.0' in figures
    assert (await asyncio.wait_for(task, 30)).is_complete
    assert await asyncio.to_thread(daemon.process.wait, 30) == 0


async def test_what_does_not_finish_in_time_is_cut_with_an_error_event(
    start_daemon: Start, client: Any, make_answer: Any
) -> None:
    daemon = start_daemon(env={"FAKE_STEP_MS": "10"}, **{"server.drain_seconds": 0.5})
    _, task = await _streaming(client, daemon, make_answer, 2000)
    began = time.monotonic()
    daemon.process.send_signal(signal.SIGTERM)
    answer = await asyncio.wait_for(task, 30)
    assert answer.error is not None
    assert answer.error["code"] == "server_shutdown"
    assert await asyncio.to_thread(daemon.process.wait, 30) == 0
    assert 0.5 <= time.monotonic() - began < 15  # of 20 for all of it


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_stops_at_once(
    start_daemon: Start, client: Any, make_answer: Any, number: signal.Signals
) -> None:
    daemon = start_daemon(env={"FAKE_STEP_MS": "10"})
    _, task = await _streaming(client, daemon, make_answer, 2000)
    began = time.monotonic()
    daemon.process.send_signal(number)
    await asyncio.sleep(0.2)
    daemon.process.send_signal(number)
    answer = await asyncio.wait_for(task, 30)
    assert answer.error is not None
    assert await asyncio.to_thread(daemon.process.wait, 30) == 0
    assert time.monotonic() - began < 15


def test_an_idle_daemon_stops_at_once_with_its_engine(start_daemon: Start) -> None:
    daemon = start_daemon()
    pid = daemon.engine_pid
    began = time.monotonic()
    assert daemon.stop() == 0
    assert time.monotonic() - began < 15
    assert not Path(f"/proc/{pid}").exists()


def test_a_signal_while_loading_stops_cleanly(start_daemon: Start) -> None:
    daemon = start_daemon(wait=False, env={"FAKE_LOAD_MS": "60000"})
    daemon.wait_listening()
    assert daemon.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_store_starts_stops_cleanly(start_daemon: Start, number: int) -> None:
    daemon = start_daemon(wait=False, **{"test.store_signal": int(number)})
    assert daemon.process.wait(30) == 0
    assert daemon.said(f"{signal.Signals(number).name} received: draining")
    assert daemon.events()[-1]["event"] == "stopped"


def test_a_reload_while_the_store_starts_is_carried_out(start_daemon: Start) -> None:
    daemon = start_daemon(**{"test.store_signal": int(signal.SIGHUP)})
    daemon._wait("log level set to", 30)
    assert daemon.stop() == 0


def test_sighup_reads_the_log_level_again(start_daemon: Start, tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text('[log]\nlevel = "info"\n')
    daemon = start_daemon(env={"GATEWAYD_CONFIG": str(file)})
    file.write_text('[log]\nlevel = "debug"\n[engine]\nreplicas = 2\n')
    daemon.process.send_signal(signal.SIGHUP)
    daemon._wait("log level set to debug", 30)
    assert daemon.said("restart required: [engine] replicas has changed")
    file.write_text("[log\n")
    daemon.process.send_signal(signal.SIGHUP)
    daemon._wait("configuration not reloaded", 30)
    assert daemon.readyz()[0] == 200


def test_a_port_in_use_is_one_sentence(start_daemon: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon = start_daemon(wait=False, **{"server.port": port})
        assert daemon.process.wait(30) == 1
        assert daemon.said(f"port {port} of 127.0.0.1 is in use")
        assert not daemon.said("Traceback")


def test_a_model_folder_that_is_none_is_one_sentence(start_daemon: Start, tmp_path: Path) -> None:
    daemon = start_daemon(wait=False, **{"model.path": tmp_path})
    assert daemon.process.wait(30) == 1
    assert daemon.said(str(tmp_path))
    assert not daemon.said("Traceback")


def test_a_bad_configuration_ends_with_78(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text("[server]\nprot = 1\n")
    done = subprocess.run(
        [sys.executable, "-m", "gatewayd", "serve", "--config", str(file)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 78
    assert f"file {file}: unknown key server.prot; did you mean server.port?" in done.stderr


@pytest.mark.parametrize(
    ("settings", "status"),
    [({}, 403), ({"server.api_key": "a-key-of-ours"}, 200), ({"server.host": "0.0.0.0"}, 200)],
)
def test_a_foreign_host_name_needs_a_key_or_an_open_address(
    start_daemon: Start, settings: dict[str, object], status: int
) -> None:
    daemon = start_daemon(**settings)
    headers = {"host": "evil.example", "x-api-key": "a-key-of-ours"}
    assert httpx.get(f"{daemon.url}/v1/models", headers=headers).status_code == status
    assert httpx.get(f"{daemon.url}/livez", headers=headers).status_code == 200
